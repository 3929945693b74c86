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
