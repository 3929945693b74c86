//! Random configurations survive every format.

use super::*;
use proptest::prelude::*;
use proptest::strategy::Strategy;

fn limit() -> impl Strategy<Value = Limit> {
    prop_oneof![
        (0..=1_000_000_usize).prop_map(Limit::Batches),
        Just(Limit::ALL),
        thousandths(0..1000).prop_map(Limit::Fraction),
    ]
}

/// Numbers that every format reads exactly; serde_json is a bit off for longer ones.
fn thousandths(range: std::ops::Range<u32>) -> impl Strategy<Value = f64> {
    range.prop_map(|n| f64::from(n) / 1000.0)
}

fn number() -> impl Strategy<Value = u64> {
    0..=i64::MAX as u64
}

fn time() -> impl Strategy<Value = WallTime> {
    (number(), 0..1_000_000_000_u32).prop_map(|(s, ns)| Duration::new(s, ns).into())
}

prop_compose! {
    fn hardware()(
        accelerator in "[a-z]{1,8}",
        devices in prop_oneof![
            Just(Devices::Auto),
            Just(Devices::All),
            (1..100_usize).prop_map(Devices::Count),
            proptest::collection::hash_set(0..100_usize, 1..5)
                .prop_map(|ids| Devices::Ids(ids.into_iter().collect())),
        ],
        precision in proptest::sample::select(&Precision::ALL[..]),
        nodes in 1..=i64::MAX as u64,
        check in proptest::option::of(1..=i64::MAX as u64),
        (some, sync) in any::<(bool, bool)>(),
        timeout in time().prop_filter("above 0", |t| *t > WallTime::ZERO),
        strategy in prop_oneof![
            Just(crate::config::Strategy::Auto),
            Just(crate::config::Strategy::Ddp),
            Just(crate::config::Strategy::Zero1),
            (1..=u64::MAX).prop_map(|every_n_steps| crate::config::Strategy::FedAvg { every_n_steps }),
        ],
        seed in number(),
        deterministic: bool,
    ) -> TrainerConfig {
        let is_local = matches!(strategy, crate::config::Strategy::FedAvg { .. });
        TrainerConfig::new()
            .with_accelerator(accelerator)
            .with_devices(devices)
            .with_precision(precision)
            .with_num_nodes(some.then_some(nodes))
            .with_strategy(strategy)
            .with_sync_batchnorm(sync)
            .with_check_replicas_every_n_steps(check.filter(|_| !is_local))
            .with_collective_timeout(timeout)
            .with_seed(seed)
            .with_deterministic(deterministic)
    }
}

prop_compose! {
    fn ends()(
        config in hardware(),
        (max_epochs, min_epochs) in proptest::option::of(number())
            .prop_flat_map(|max| (Just(max), proptest::option::of(0..=max.unwrap_or(1000)))),
        (max_steps, min_steps) in proptest::option::of(number())
            .prop_flat_map(|max| (Just(max), proptest::option::of(0..=max.unwrap_or(1000)))),
        max_time in proptest::option::of(time()),
        limits in (limit(), limit(), limit(), limit()),
        dev in number(),
        overfit in limit(),
        which in 0..3,
    ) -> TrainerConfig {
        let config = config
            .with_max_epochs(max_epochs)
            .with_min_epochs(min_epochs)
            .with_max_steps(max_steps)
            .with_min_steps(min_steps)
            .with_max_time(max_time)
            .with_limit_val_batches(limits.1)
            .with_limit_test_batches(limits.2)
            .with_limit_predict_batches(limits.3);
        // These exclude one another.
        match which {
            0 => config.with_overfit_batches(overfit),
            1 => config.with_fast_dev_run(dev),
            _ => config.with_limit_train_batches(limits.0),
        }
    }
}

prop_compose! {
    fn checkpoints()(
        config in ends(),
        every in proptest::option::of(1..=i64::MAX as u64),
        monitor in proptest::option::of(("(min:|max:)?[a-z]{1,5}(/[a-z]{1,5})?")
            .prop_map(|text| text.parse::<Monitor>().unwrap())),
        top_k in proptest::option::of((-1..i64::MAX).prop_map(SaveTopK::from)),
        resume in proptest::option::of(prop_oneof![
            Just(Resume::Last),
            Just(Resume::Best),
            "[a-z]{1,4}/[^\\p{C}]{1,20}".prop_map(|path| Resume::Path(path.into())),
        ]),
        (background, strict) in any::<(bool, bool)>(),
    ) -> TrainerConfig {
        config
            .with_checkpoint_every_n_steps(every)
            .with_monitor(monitor)
            .with_save_top_k(top_k)
            .with_resume(resume)
            .with_checkpoint_in_background(background)
            .with_resume_strict(strict)
    }
}

prop_compose! {
    fn watching()(
        config in checkpoints(),
        (histograms, system) in any::<(bool, bool)>(),
        norms in proptest::sample::select(&[GradNorms::Off, GradNorms::Parts, GradNorms::Layers][..]),
        profiler in proptest::option::of(
            proptest::sample::select(&[ProfilerMode::Simple, ProfilerMode::Trace][..])
        ),
        addr in proptest::option::of(any::<([u8; 4], u16)>().prop_map(SocketAddr::from)),
    ) -> TrainerConfig {
        config
            .with_log_grad_norms(norms)
            .with_log_histograms(histograms)
            .with_log_system_metrics(system)
            .with_profiler(profiler)
            .with_metrics_addr(addr)
    }
}

prop_compose! {
    fn any_config()(
        config in watching(),
        (interval, every) in prop_oneof![
            (thousandths(1..1001).prop_map(ValCheckInterval::Fraction), 1..=i64::MAX as u64),
            ((1..=i64::MAX as u64).prop_map(ValCheckInterval::Batches), Just(1)),
            (time().prop_filter("above 0", |t| *t > WallTime::ZERO)
                .prop_map(ValCheckInterval::Time), 1..=i64::MAX as u64),
        ],
        sanity in prop_oneof![Just(SanitySteps::All), number().prop_map(SanitySteps::Batches)],
        (log, accumulate) in (1..=i64::MAX as u64, 1..=i64::MAX as u64),
        clip in proptest::option::of((thousandths(1..1_000_000), any::<bool>()).prop_map(
            |(number, norm)| if norm { GradientClip::Norm(number) } else { GradientClip::Value(number) }
        )),
        (detect_anomaly, model_summary, checkpointing) in any::<(bool, bool, bool)>(),
        (offload, recompute) in any::<(bool, bool)>(),
        scale in prop_oneof![
            thousandths(1000..1_000_000).prop_map(|n| LossScale::Dynamic { start: n as f32 }),
            thousandths(1..1_000_000).prop_map(|n| LossScale::Static(n as f32)),
        ],
        full in proptest::collection::vec("[a-m*.]{1,8}", 0..4),
        averaging in proptest::option::of(prop_oneof![
            thousandths(0..1000).prop_map(|decay| WeightAveraging::Ema { decay }),
            thousandths(0..1000).prop_map(|start| WeightAveraging::Swa { start }),
        ]),
        run_dir in "\\PC{1,20}",
        (progress, dashboard) in (proptest::sample::select(&ProgressMode::ALL[..]), any::<bool>()),
        loggers in proptest::collection::hash_set("[a-m]{1,8}", 0..4),
    ) -> TrainerConfig {
        // Some go with no end by epochs, or with no strategy that steps apart.
        let is_local = matches!(config.strategy, super::Strategy::FedAvg { .. });
        let is_endless = config.epoch_limit().is_none();
        let averaging = averaging.filter(|averaging| match averaging {
            WeightAveraging::Swa { .. } => !is_local && !is_endless,
            WeightAveraging::Ema { .. } => !is_local,
        });
        config
            .with_val_check_interval(interval)
            .with_check_val_every_n_epoch(every)
            .with_num_sanity_val_steps(sanity)
            .with_log_every_n_steps(log)
            .with_accumulate_grad_batches(accumulate)
            .with_gradient_clip(clip)
            .with_loss_scale(scale)
            .with_full_precision(full.join(",").parse::<Paths>().unwrap())
            .with_weight_averaging(averaging)
            .with_dashboard(dashboard && progress != ProgressMode::Off)
            .with_offload_optimizer(offload)
            .with_gradient_checkpointing(recompute)
            .with_detect_anomaly(detect_anomaly)
            .with_model_summary(model_summary)
            .with_checkpointing(checkpointing)
            .with_run_dir(run_dir)
            .with_progress(progress)
            .with_logger(loggers.into_iter().collect::<LoggerNames>())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_config_reads_back(config in any_config()) {
        prop_assert_eq!(config.problem().map(|p| p.message), None);
        let toml = config.to_toml().unwrap();
        prop_assert_eq!(&TrainerConfig::from_toml_str(&toml).unwrap(), &config);
        prop_assert_eq!(&toml::from_str::<TrainerConfig>(&toml).unwrap(), &config);

        let folder = Folder::new();
        let json = folder.file("run.json", &serde_json::to_string(&config).unwrap());
        prop_assert_eq!(&TrainerConfig::from_file(json).unwrap(), &config);
        #[cfg(feature = "yaml")]
        {
            let yaml = folder.file("run.yaml", &serde_saphyr::to_string(&config).unwrap());
            prop_assert_eq!(&TrainerConfig::from_file(yaml).unwrap(), &config);
        }
    }

    #[test]
    fn the_suggested_fraction_is_a_batch(batches in 1..1_000_000_usize) {
        let error = Limit::Fraction(1e-12).resolve(Some(batches), "train").unwrap_err().to_string();
        let suggested = error.split("use ").nth(1).unwrap().split(' ').next().unwrap();
        let suggested: Limit = suggested.parse().unwrap();
        prop_assert!(matches!(suggested, Limit::Fraction(_)));
        prop_assert_eq!(suggested.resolve(Some(batches), "train").unwrap(), Some(1));
    }
}
