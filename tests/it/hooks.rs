//! The order of hooks, and what they see.

use crate::support::*;
use burn::tensor::backend::AutodiffBackend;
use firebox::callback::{Closure, Hook};
use firebox::data::Loaders;
use firebox::prelude::*;
use std::cell::RefCell;
use std::rc::Rc;

on_each_backend!(
    the_order_of_hooks,
    callbacks_run_in_the_order_given,
    a_callback_logs_in_the_row_of_its_step,
    checkpoints_are_served_after_all_hooks,
    a_trainer_can_be_used_again,
);

/// Writes a line for each hook.
#[derive(Clone, Default)]
struct Recorder(Rc<RefCell<Vec<String>>>);

impl Recorder {
    fn line<M: TrainModule>(&self, hook: &str, cx: &RunContext<'_, M>) -> Result<()> {
        let p = cx.progress();
        let stage = format!("{:?}", cx.stage());
        let counters = format!("epoch {} batch {} step {}", p.epoch, p.batch, p.global_step);
        let results: Vec<_> = cx.results().iter().map(|(name, _)| name).collect();
        let line = format!("{hook:<18} {stage:<12} {counters}  {}", results.join(" "));
        self.0.borrow_mut().push(line.trim_end().to_owned());
        Ok(())
    }
}

impl<M: TrainModule> Callback<M> for Recorder {
    fn on_fit_start(&mut self, cx: &mut RunContext<'_, M>) -> Result<()> {
        self.line("fit start", cx)
    }
    fn on_train_epoch_start(&mut self, cx: &mut RunContext<'_, M>) -> Result<()> {
        self.line("train epoch start", cx)
    }
    fn on_train_batch_start(&mut self, cx: &mut RunContext<'_, M>) -> Result<()> {
        self.line("train batch start", cx)
    }
    fn on_optimizer_step(&mut self, cx: &mut RunContext<'_, M>) -> Result<()> {
        self.line("optimizer step", cx)
    }
    fn on_train_batch_end(&mut self, cx: &mut RunContext<'_, M>) -> Result<()> {
        self.line("train batch end", cx)
    }
    fn on_train_epoch_end(&mut self, cx: &mut RunContext<'_, M>) -> Result<()> {
        self.line("train epoch end", cx)
    }
    fn on_eval_start(&mut self, cx: &mut RunContext<'_, M>) -> Result<()> {
        self.line("eval start", cx)
    }
    fn on_eval_batch_end(&mut self, cx: &mut RunContext<'_, M>) -> Result<()> {
        self.line("eval batch end", cx)
    }
    fn on_eval_end(&mut self, cx: &mut RunContext<'_, M>) -> Result<()> {
        self.line("eval end", cx)
    }
    fn on_fit_end(&mut self, cx: &mut RunContext<'_, M>) -> Result<()> {
        self.line("fit end", cx)
    }
}

/// 2 epochs of 3 batches in groups of 2, with validation.
fn the_order_of_hooks<B: AutodiffBackend>() {
    let (config, _runs) = quiet();
    let config = config.with_max_epochs(2).with_accumulate_grad_batches(2);
    let recorder = Recorder::default();
    let mut data = Loaders::new(gradients([1.0; 3])).with_val(gradients([1.0]));
    Trainer::new(config, B::Device::default())
        .with_callback(recorder.clone())
        .fit(Weights::<B>::new(1.0, 1.0), &mut data)
        .unwrap();
    // One snapshot for all backends.
    insta::allow_duplicates!(insta::assert_snapshot!(recorder.0.borrow().join("\n"), @r"
    fit start          Train        epoch 0 batch 0 step 0
    eval start         SanityCheck  epoch 0 batch 0 step 0
    eval batch end     SanityCheck  epoch 0 batch 0 step 0
    eval end           SanityCheck  epoch 0 batch 0 step 0  val/value
    train epoch start  Train        epoch 0 batch 0 step 0
    train batch start  Train        epoch 0 batch 0 step 0
    train batch end    Train        epoch 0 batch 1 step 0
    train batch start  Train        epoch 0 batch 1 step 0
    optimizer step     Train        epoch 0 batch 2 step 1  train/loss train/grad_norm
    train batch end    Train        epoch 0 batch 2 step 1  train/loss train/grad_norm
    train batch start  Train        epoch 0 batch 2 step 1
    optimizer step     Train        epoch 0 batch 3 step 2  train/loss train/grad_norm
    train batch end    Train        epoch 0 batch 3 step 2  train/loss train/grad_norm
    eval start         Validate     epoch 0 batch 3 step 2
    eval batch end     Validate     epoch 0 batch 3 step 2
    eval end           Validate     epoch 0 batch 3 step 2  val/value
    train epoch end    Train        epoch 0 batch 3 step 2  train/loss_epoch
    train epoch start  Train        epoch 1 batch 0 step 2
    train batch start  Train        epoch 1 batch 0 step 2
    train batch end    Train        epoch 1 batch 1 step 2
    train batch start  Train        epoch 1 batch 1 step 2
    optimizer step     Train        epoch 1 batch 2 step 3  train/loss train/grad_norm
    train batch end    Train        epoch 1 batch 2 step 3  train/loss train/grad_norm
    train batch start  Train        epoch 1 batch 2 step 3
    optimizer step     Train        epoch 1 batch 3 step 4  train/loss train/grad_norm
    train batch end    Train        epoch 1 batch 3 step 4  train/loss train/grad_norm
    eval start         Validate     epoch 1 batch 3 step 4
    eval batch end     Validate     epoch 1 batch 3 step 4
    eval end           Validate     epoch 1 batch 3 step 4  val/value
    train epoch end    Train        epoch 1 batch 3 step 4  train/loss_epoch
    fit end            Train        epoch 2 batch 0 step 4
    "));
}

fn callbacks_run_in_the_order_given<B: AutodiffBackend>() {
    let (config, _runs) = quiet();
    let order = Rc::new(RefCell::new(Vec::new()));
    let mut trainer = Trainer::<Weights<B>>::new(config.with_max_epochs(1), B::Device::default());
    for name in ["first", "second", "third"] {
        let order = order.clone();
        trainer = trainer.with_callback(Closure::at(Hook::FitStart, move |_| {
            order.borrow_mut().push(name);
            Ok(())
        }));
    }
    trainer.fit(Weights::new(1.0, 1.0), &mut ones(1)).unwrap();
    assert_eq!(*order.borrow(), ["first", "second", "third"]);
}

fn a_callback_logs_in_the_row_of_its_step<B: AutodiffBackend>() {
    let (config, _runs) = quiet();
    let rows = Rows::default();
    let twice = Closure::at(
        Hook::TrainBatchEnd,
        |cx: &mut RunContext<'_, Weights<B>>| {
            let step = cx.progress().global_step;
            cx.log("twice", 2.0 * step as f64);
            Ok(())
        },
    );
    let config = config.with_max_epochs(1).with_log_every_n_steps(2);
    Trainer::new(config, B::Device::default())
        .with_callback(twice)
        .with_logger(rows.clone())
        .fit(Weights::new(1.0, 1.0), &mut ones(3))
        .unwrap();
    // What a callback logs is kept, also at steps that are not logged otherwise.
    assert_eq!(rows.values("twice"), [2.0, 4.0, 6.0]);
    assert_eq!(rows.steps("twice"), [1, 2, 3]);
    assert_eq!(rows.steps("train/loss"), [2]);
}

/// A checkpoint that one callback asks for holds the state of all, as it is after their hooks.
fn checkpoints_are_served_after_all_hooks<B: AutodiffBackend>() {
    struct Counts(u64);
    impl<M: TrainModule> Callback<M> for Counts {
        fn on_train_epoch_end(&mut self, _cx: &mut RunContext<'_, M>) -> Result<()> {
            self.0 += 1;
            Ok(())
        }
        fn save_state(&self) -> serde_json::Value {
            self.0.into()
        }
    }
    let (config, _runs) = quiet();
    let outcome = Trainer::new(config.with_max_epochs(3), B::Device::default())
        .with_callback(ModelCheckpoint::new().save_top_k(-1))
        .with_callback(Counts(0))
        .fit(Weights::<B>::new(1.0, 1.0), &mut ones(2))
        .unwrap();
    let folder = outcome.run_dir.unwrap().join("checkpoints");
    for (epoch, step) in [(0, 2), (1, 4), (2, 6)] {
        let path = folder.join(format!("epoch={epoch}-step={step}"));
        let state = std::fs::read_to_string(path.join("state.json")).unwrap();
        let state: serde_json::Value = serde_json::from_str(&state).unwrap();
        assert_eq!(state["callbacks"][1]["state"], epoch + 1);
        assert_eq!(state["progress"]["global_step"], step);
        let model = firebox::checkpoint::load_model(&path, Weights::<B>::new(0.0, 0.0));
        assert_eq!(model.unwrap().values(), [1.0 - step as f32, 1.0]);
    }
    assert_eq!(
        outcome.last_checkpoint.unwrap(),
        folder.join("epoch=2-step=6")
    );
}

fn a_trainer_can_be_used_again<B: AutodiffBackend>() {
    let (config, runs) = quiet();
    let rows = Rows::default();
    let mut trainer = Trainer::new(config.with_max_epochs(1), B::Device::default())
        .with_callback(LearningRateMonitor::new())
        .with_logger(rows.clone());
    let first = trainer
        .fit(Weights::<B>::new(1.0, 1.0), &mut ones(2))
        .unwrap();
    let second = trainer.fit(first.model, &mut ones(3)).unwrap();
    assert_eq!(rows.steps("train/loss"), [1, 2, 1, 2, 3]);
    assert_eq!(rows.values("lr"), [1.0; 5]);
    let dir = second.run_dir.unwrap();
    assert_eq!(dir, runs.path().join("runs/version_1"));
    // Each run has its own files, with its own settings.
    let saved = TrainerConfig::from_file(dir.join("config.toml")).unwrap();
    assert_eq!(&saved, trainer.config());
}
