//! Known faults of other trainers.

use crate::support::*;
use burn::tensor::backend::AutodiffBackend;
use firebox::config::Resume;
use firebox::data::Loaders;
use firebox::optim::schedule::{MultiStep, ScheduleInterval};
use firebox::prelude::*;

on_each_backend!(the_learning_rate_goes_on_where_it_was);

/// A rate of 100, a tenth of it from epoch 4, two batches an epoch, resumed after each epoch, with a
/// validation in every or in every second epoch. Its gradient is 1, so the weight shows which rates
/// the optimizer has used.
fn the_learning_rate_goes_on_where_it_was<B: AutodiffBackend>() {
    for every in [1, 2] {
        let (config, _runs) = quiet();
        let config = config
            .with_max_epochs(6)
            .with_check_val_every_n_epoch(every);
        let fit = |config: TrainerConfig| {
            let rows = Rows::default();
            let optimizers =
                sgd::<B>(100.0).with_schedule(ScheduleInterval::Epoch, MultiStep::new([4], 0.1));
            let mut data = Loaders::new(gradients([1.0, 1.0])).with_val(gradients([1.0]));
            let outcome = Trainer::new(config, B::Device::default())
                .with_callback(LearningRateMonitor::new())
                .with_callback(ModelCheckpoint::new().save_top_k(-1))
                .with_logger(rows.clone())
                .fit_with(Weights::new(1.0, 1.0), optimizers, &mut data)
                .unwrap();
            (outcome, rows.values("lr"))
        };
        let rates = [[100.0; 8].as_slice(), &[10.0; 4]].concat();
        let (through, lr) = fit(config.clone());
        assert_eq!(lr, rates);
        assert_eq!(through.model.values(), [1.0 - 840.0, 1.0]);
        let folder = through.run_dir.unwrap().join("checkpoints");
        for epoch in 0..5 {
            let steps = 2 * (epoch + 1);
            let path = folder.join(format!("epoch={epoch}-step={steps}"));
            let (resumed, lr) = fit(config.clone().with_resume(Resume::Path(path)));
            assert_eq!(lr, rates[steps..], "after epoch {epoch}");
            assert_eq!(resumed.model.values(), [1.0 - 840.0, 1.0]);
            assert_eq!(resumed.progress.global_step, 12);
        }
    }
}
