//! Validation, test and prediction over several replicas.

use super::{Net, assert_near, rows, trainer};
use crate::support::quiet;
use burn::tensor::backend::AutodiffBackend;
use firebox::data::Loaders;

on_each_backend!(
    metrics_are_those_of_one_replica,
    predictions_come_in_the_order_of_the_data,
);

pub fn metrics_are_those_of_one_replica<B: AutodiffBackend>() {
    for (samples, batch_size) in [(5, 1), (8, 2), (11, 5)] {
        let run = |replicas| {
            let (config, _runs) = quiet();
            let (val, seen) = rows::<B::InnerBackend>(samples);
            let (train, _) = rows::<B>(1);
            let mut data = Loaders::new(train).with_val(val.batch_size(batch_size));
            let net = Net::<B>::new(&B::Device::default());
            let metrics = trainer(config, replicas).validate(&net, &mut data).unwrap();
            (metrics.get("val/loss").unwrap(), seen.take())
        };
        let (one, several) = (run(1), run(3));
        assert_near(&[several.0], &[one.0], 1e-6);
        assert_eq!(several.1, (0..samples).collect::<Vec<_>>());
    }
}

pub fn predictions_come_in_the_order_of_the_data<B: AutodiffBackend>() {
    let run = |replicas| {
        let (config, _runs) = quiet();
        let (loader, _) = rows::<B::InnerBackend>(23);
        let loader = loader.batch_size(4);
        let net = Net::<B>::new(&B::Device::default());
        trainer(config, replicas).predict(&net, &loader).unwrap()
    };
    // Batches are the same, too: each is computed by one replica.
    assert_eq!(run(3), run(1));
    let ids: Vec<_> = run(2).into_iter().flatten().map(|(id, _)| id).collect();
    assert_eq!(ids, (0..23).collect::<Vec<_>>());
}

#[test]
fn predictions_are_written_by_every_replica() {
    use firebox::testing::Cpu;
    use std::sync::{Arc, Mutex};
    let (config, _runs) = quiet();
    let (loader, _) = rows::<<Cpu as AutodiffBackend>::InnerBackend>(23);
    let net = Net::<Cpu>::new(&Default::default());
    let written = Arc::new(Mutex::new(Vec::new()));
    let all = Arc::clone(&written);
    let predicted = trainer(config.clone(), 3).predict_to(&net, &loader.batch_size(4), move |p| {
        let ids: Vec<usize> = p.output.iter().map(|(id, _)| *id).collect();
        assert_eq!(ids, p.samples);
        all.lock().unwrap().push((p.batch, p.rank));
        Ok(())
    });
    predicted.unwrap();
    let mut written = std::mem::take(&mut *written.lock().unwrap());
    written.sort_unstable();
    assert_eq!(
        written,
        (0..6).map(|batch| (batch, batch % 3)).collect::<Vec<_>>()
    );

    // What one of them cannot write ends all.
    let (loader, _) = rows::<<Cpu as AutodiffBackend>::InnerBackend>(23);
    let error = trainer(config, 3).predict_to(&net, &loader, |p| match p.rank {
        2 => Err(firebox::Error::user("disk full")),
        _ => Ok(()),
    });
    let error = error.unwrap_err().to_string();
    assert_eq!(error, "rank 2: predict batch 2: disk full");
}
