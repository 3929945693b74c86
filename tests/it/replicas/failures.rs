//! Whatever fails on one replica ends the run with that error.

use super::{Net, Rows, rows, trainer};
use crate::support::quiet;
use burn::module::Module;
use burn::tensor::backend::{AutodiffBackend, Backend};
use firebox::checkpoint::Checkpoint;
use firebox::data::{FallibleDataset, Loaders};
use firebox::prelude::*;

on_each_backend!(
    a_failing_step_is_told_with_its_rank,
    a_panic_in_a_step_is_told_with_its_rank
);

/// Fails, or panics, when it sees the sample.
#[derive(Module, Debug)]
struct Fails<B: Backend> {
    net: Net<B>,
    sample: usize,
    panics: bool,
}

impl<B: AutodiffBackend> TrainModule for Fails<B> {
    type Backend = B;
    type Batch = Rows<B>;
    type Eval = Fails<B::InnerBackend>;

    fn training_step(&self, rows: Rows<B>, cx: &mut StepContext<B>) -> Result<Loss<B>> {
        if rows.ids.contains(&self.sample) {
            assert!(!self.panics, "sample {} again", self.sample);
            return Err(Error::user(format!("sample {} is no good", self.sample)));
        }
        self.net.training_step(rows, cx)
    }

    fn configure_optimizers(&self) -> Result<Optimizers<Self>> {
        let optimizer = burn::optim::AdamConfig::new().init();
        Ok(Optimizers::single(optimizer).with_lr(0.01))
    }
}

impl<B: Backend> EvalModule for Fails<B> {
    type Backend = B;
    type Batch = Rows<B>;
}

/// The error of a run over 40 samples in batches of 4, and its rescue checkpoint.
fn error<B: AutodiffBackend>(sample: usize, panics: bool) -> (String, Checkpoint) {
    let (config, runs) = quiet();
    let (train, _) = rows::<B>(40);
    let net = Net::<B>::new(&B::Device::default());
    let model = Fails {
        net,
        sample,
        panics,
    };
    let mut data = Loaders::new(train.batch_size(4));
    let mut trainer = trainer(config.with_max_epochs(1), 2)
        .with_callback(ModelCheckpoint::new().save_on_exception(true));
    let error = trainer.fit(model, &mut data).unwrap_err().to_string();
    let folder = runs.path().join("runs/version_0/checkpoints/last");
    (error, Checkpoint::open(folder).unwrap())
}

pub fn a_failing_step_is_told_with_its_rank<B: AutodiffBackend>() {
    // Of the fourth batch, 12 to 15, the second replica has 14 and 15.
    for (sample, rank) in [(12, 0), (15, 1)] {
        let (error, rescue) = error::<B>(sample, false);
        assert_eq!(
            error,
            format!(
                "rank {rank}: epoch 0, batch 3, step 3: training_step: sample {sample} is no good"
            )
        );
        assert_eq!(rescue.progress().global_step, 3);
        assert_eq!(rescue.progress().batch, 3);
    }
}

pub fn a_panic_in_a_step_is_told_with_its_rank<B: AutodiffBackend>() {
    let (error, rescue) = error::<B>(14, true);
    let expected = "rank 1: epoch 0, batch 3, step 3: training_step: panicked: sample 14 again";
    assert!(error.starts_with(expected), "{error}");
    assert_eq!(rescue.progress().global_step, 3);
}

#[test]
fn a_failing_loader_is_told_with_its_rank() {
    use firebox::testing::{Cpu, Line, PointBatcher};

    struct Broken(usize, bool);
    impl FallibleDataset<(f32, f32)> for Broken {
        fn len(&self) -> usize {
            40
        }
        fn try_get(&self, index: usize) -> Result<(f32, f32)> {
            if index == self.0 {
                assert!(!self.1, "no disk");
                return Err(Error::data("cannot be read"));
            }
            Ok((index as f32 / 40.0, 1.0))
        }
    }
    for (panics, what) in [(false, "cannot be read"), (true, "no disk")] {
        let (config, _runs) = quiet();
        let loader = Loader::from_fallible(Broken(15, panics), PointBatcher);
        let loader = loader.batch_size(4).workers(2);
        let model = Line::<Cpu>::new(&Default::default());
        let mut trainer = trainer(config.with_max_epochs(1), 2);
        let error = trainer
            .fit(model, &mut Loaders::new(loader))
            .unwrap_err()
            .to_string();
        assert!(
            error.starts_with("rank 1: epoch 0, batch 3, step 3: train data: "),
            "{error}"
        );
        assert!(
            error.contains("sample 15") && error.contains(what),
            "{error}"
        );
    }
}
