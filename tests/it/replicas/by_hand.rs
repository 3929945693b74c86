//! Loops written by hand on several devices.

use super::{Net, assert_near, rows};
use burn::tensor::Tensor;
use burn::tensor::backend::AutodiffBackend;
use firebox::ErrorKind;
use firebox::config::WallTime;
use firebox::fabric::Reduce;
use firebox::prelude::*;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

on_each_backend!(
    a_loop_by_hand_gives_what_one_device_gives,
    ranks_exchange_tensors,
    a_rank_that_fails_ends_all,
);

fn fabric<B: AutodiffBackend>(ranks: usize) -> Fabric<B> {
    let device = B::Device::default();
    Fabric::new(device.clone()).with_devices(vec![device; ranks])
}

pub fn a_loop_by_hand_gives_what_one_device_gives<B: AutodiffBackend>() {
    let train = |ranks| {
        let fabric = fabric::<B>(ranks).with_gradient_clip(GradientClip::Norm(0.5));
        let values = fabric.launch(|fabric| {
            let (data, _) = rows::<B>(11);
            let data = data.batch_size(4).shuffle(true);
            let mut state = fabric.setup(Net::new(fabric.device()))?;
            for epoch in 0..3 {
                for batch in fabric.batches(&data, epoch)? {
                    let mut batch = batch?;
                    if let Some(rows) = batch.value.take() {
                        fabric.in_batch(epoch, &batch, || {
                            let loss = state.model().loss(&rows);
                            fabric.backward(&mut state, loss, batch.samples)
                        })?;
                    }
                    fabric.optimizer_step(&mut state)?;
                }
            }
            Ok(fabric.finish(state)?.values())
        });
        let values = values.unwrap();
        for other in &values {
            match std::any::type_name::<B>().contains("Cube") {
                false => assert_eq!(*other, values[0]),
                // A GPU's kernels may round in another way from device to device.
                true => assert_near(other, &values[0], 1e-5),
            }
        }
        values[0].clone()
    };
    let one = train(1);
    for ranks in [2, 3] {
        assert_near(&train(ranks), &one, 1e-5);
    }
}

pub fn ranks_exchange_tensors<B: AutodiffBackend>() {
    let done = fabric::<B>(3).launch(|fabric| {
        let rank = fabric.rank() as f32;
        assert_eq!(fabric.world_size(), 3);
        let mine = Tensor::<B, 1>::from_floats([rank, 10.0 * rank], fabric.device());
        let sum = fabric.all_reduce(mine.clone(), Reduce::Sum)?;
        let mean = fabric.all_reduce(mine.clone(), Reduce::Mean)?;
        let all = Tensor::cat(fabric.all_gather(mine.clone())?, 0);
        let last = fabric.broadcast(mine, 2)?;
        fabric.barrier()?;
        let numbers = |tensor: Tensor<B, 1>| tensor.into_data().iter::<f32>().collect::<Vec<_>>();
        Ok([sum, mean, all, last].map(numbers))
    });
    for [sum, mean, all, last] in done.unwrap() {
        assert_eq!(sum, [3.0, 30.0]);
        assert_eq!(mean, [1.0, 10.0]);
        assert_eq!(all, [0.0, 0.0, 1.0, 10.0, 2.0, 20.0]);
        assert_eq!(last, [2.0, 20.0]);
    }
}

pub fn a_rank_that_fails_ends_all<B: AutodiffBackend>() {
    for panics in [false, true] {
        let error = fabric::<B>(3).launch(|fabric| {
            if fabric.rank() == 2 {
                assert!(!panics, "no more");
                return Err(Error::data("no more"));
            }
            fabric.barrier()
        });
        let error = error.unwrap_err();
        assert!(error.to_string().starts_with("rank 2: "), "{error}");
        assert!(error.to_string().contains("no more"), "{error}");
        let kind = if panics {
            ErrorKind::User
        } else {
            ErrorKind::Data
        };
        assert_eq!(error.kind(), kind);
    }
    let error = fabric::<B>(2).launch(|fabric| {
        let device = fabric.device();
        let mine = Tensor::<B, 1>::zeros([2 + fabric.rank()], device);
        fabric.all_reduce(mine, Reduce::Sum).map(drop)
    });
    let error = error.unwrap_err().to_string();
    assert!(error.contains("ranks differ in the shapes"), "{error}");
    let one = Tensor::<B, 1>::zeros([1], &B::Device::default());
    let error = fabric::<B>(1).broadcast(one, 1).unwrap_err().to_string();
    assert_eq!(
        error,
        "there is no rank 1 to broadcast from; ranks are below 1"
    );
    let none = fabric::<B>(0).launch(|_| Ok(())).unwrap_err();
    assert_eq!(none.exit_code(), 2);
}

#[test]
fn a_rank_that_does_not_come_ends_all() {
    use firebox::testing::Cpu;
    let soon = WallTime::from(Duration::from_millis(1));
    let config = TrainerConfig::new().with_collective_timeout(soon);
    let cpu = Default::default();
    let fabric = Fabric::<Cpu>::from_config(&config, cpu).with_devices([cpu, cpu]);
    let has_waited = AtomicBool::new(false);
    let error = fabric.launch(|fabric| {
        if fabric.rank() == 0 {
            let waited = fabric.barrier();
            has_waited.store(true, Ordering::Release);
            return waited;
        }
        while !has_waited.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        Ok(())
    });
    let error = error.unwrap_err().to_string();
    assert!(error.contains("replica 1 did not come"), "{error}");
    assert!(error.contains("raise `collective_timeout`"), "{error}");
}

#[test]
fn a_rank_that_ends_early_ends_all() {
    use firebox::testing::Cpu;
    for early in [0, 1] {
        let error = fabric::<Cpu>(2).launch(|fabric| match fabric.rank() == early {
            true => Ok(()),
            false => fabric.barrier(),
        });
        let error = error.unwrap_err().to_string();
        let expected = format!("replica {early} has ended, and others wait for it");
        assert!(error.contains(&expected), "{error}");
    }
}

#[test]
fn ranks_that_step_by_themselves_end_with_one_model() {
    use firebox::config::Strategy;
    use firebox::testing::Cpu;
    let rounds = Strategy::FedAvg { every_n_steps: 100 };
    let config = TrainerConfig::new().with_strategy(rounds);
    let cpu = Default::default();
    let fabric = Fabric::<Cpu>::from_config(&config, cpu).with_devices([cpu, cpu]);
    let train = |averages| {
        fabric.launch(|fabric| {
            let (data, _) = rows::<Cpu>(12);
            let mut state = fabric.setup(Net::new(fabric.device()))?;
            for batch in fabric.batches(&data.batch_size(4), 0)? {
                let mut batch = batch?;
                if let Some(rows) = batch.value.take() {
                    let loss = state.model().loss(&rows);
                    fabric.backward(&mut state, loss, batch.samples)?;
                }
                fabric.optimizer_step(&mut state)?;
            }
            let model = match averages {
                true => fabric.finish(state)?,
                false => state.into_model()?,
            };
            Ok(model.values())
        })
    };
    let values = train(true).unwrap();
    assert_eq!(values[0], values[1]);
    let error = train(false).unwrap_err().to_string();
    assert!(error.contains("end with `Fabric::finish`"), "{error}");
}
