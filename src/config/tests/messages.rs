//! What people read when a setting is wrong.

use super::*;

fn toml_error(text: &str) -> String {
    TrainerConfig::from_toml_str(text).unwrap_err().to_string()
}

#[test]
fn messages_for_flags() {
    insta::assert_snapshot!(parse_error(&["--max-epochs=-3"]), @"error: --max-epochs: `max_epochs` is `-3`; use a whole number from 0 (below 2^63), or leave it out (`none`)");
    insta::assert_snapshot!(parse_error(&["--max-epochs", "-3"]), @"error: --max-epochs: `max_epochs` is `-3`; use a whole number from 0 (below 2^63), or leave it out (`none`)");
    insta::assert_snapshot!(parse_error(&["--checkpoint-every-n-steps=0"]), @"error: --checkpoint-every-n-steps: `checkpoint_every_n_steps` is 0; use a whole number from 1 (below 2^63), or leave it out (`none`)");
    insta::assert_snapshot!(parse_error(&["--save-top-k=x"]), @"error: --save-top-k: `save_top_k` is `x`; use a whole number from 0, or `all` (or -1), or leave it out (`none`)");
    insta::assert_snapshot!(parse_error(&["--seed=18446744073709551615"]), @"error: --seed: `seed` is `18446744073709551615`; use a whole number from 0 (below 2^63)");
    insta::assert_snapshot!(parse_error(&["--devices", "0"]), @"error: --devices: `devices` is `0`; use `auto`, `all` (or -1), a count from 1 (`2`), or different device ids (`0,2`; one alone is `0,`)");
    insta::assert_snapshot!(parse_error(&["--devices", "0,0"]), @"error: --devices: `devices` is `0,0`; use `auto`, `all` (or -1), a count from 1 (`2`), or different device ids (`0,2`; one alone is `0,`)");
    insta::assert_snapshot!(parse_error(&["--precision", "bf16"]), @"error: --precision: `precision` is `bf16`; use one of auto, 32-true, 64-true, 16-mixed, bf16-mixed, 16-true, bf16-true");
    insta::assert_snapshot!(parse_error(&["--accelerator", ""]), @"error: --accelerator: `accelerator` is ``; use `auto` or the name of an accelerator");
    insta::assert_snapshot!(parse_error(&["--limit-val-batches", "1.5"]), @"error: --limit-val-batches: `limit_val_batches` is `1.5`; use a number of batches from 0 (`10`), or a fraction with a point from 0.0 to 1.0 (`0.5`)");
    insta::assert_snapshot!(parse_error(&["--val-check-interval", "0"]), @"error: --val-check-interval: `val_check_interval` is `0`; use a fraction of the epoch with a point, above 0.0 and at most 1.0 (`0.25`), a number of batches from 1 (`500`), or a time above 0 (`10m`)");
    insta::assert_snapshot!(parse_error(&["--log-every-n-steps", "0"]), @"error: --log-every-n-steps: `log_every_n_steps` is 0; use a whole number from 1 (below 2^63)");
    insta::assert_snapshot!(parse_error(&["--log-every-n-steps", "-1"]), @"error: --log-every-n-steps: `log_every_n_steps` is `-1`; use a whole number from 1 (below 2^63)");
    insta::assert_snapshot!(parse_error(&["--gradient-clip", "0"]), @"error: --gradient-clip: `gradient_clip` is `0`; use a number above 0, for the norm (`1.0` or `norm:1.0`) or for each entry (`value:0.5`), or leave it out (`none`)");
    insta::assert_snapshot!(parse_error(&["--max-time", "90"]), @"error: --max-time: `max_time` is `90`; use a time with units (`90s`, `45m`, `1h30m`, `2d`) or as `DD:HH:MM:SS`, or leave it out (`none`)");
    insta::assert_snapshot!(parse_error(&["--deterministic=maybe"]), @"error: --deterministic: `deterministic` is `maybe`; use true or false");
    insta::assert_snapshot!(parse_error(&["--logger", "csv,csv"]), @"error: --logger: `logger` is `csv,csv`; use different names of loggers, with commas between them (`csv,jsonl`), or `none`");
    insta::assert_snapshot!(parse_error(&["--progress", "rich"]), @"error: --progress: `progress` is `rich`; use one of auto, bar, plain, off");
}

#[test]
fn messages_for_files() {
    let folder = Folder::new();
    let of = |name: &str, text: &str| {
        let file = folder.file(name, text);
        let by_flag = folder.shorten(&parse_error(&["--config", &file]));
        let by_path = folder.shorten(&TrainerConfig::from_file(file).unwrap_err().to_string());
        assert_eq!(by_flag, format!("error: {by_path}"));
        by_path
    };
    insta::assert_snapshot!(of("run.toml", "max_epochs = -3"), @"run.toml: `max_epochs` is -3; use a whole number from 0 (below 2^63), or leave it out (`none`)");
    insta::assert_snapshot!(of("run.toml", "max_epochs = 3.0"), @"run.toml: `max_epochs` is 3.0; use a whole number from 0 (below 2^63), or leave it out (`none`)");
    insta::assert_snapshot!(of("run.toml", "seed = \"7\""), @r#"run.toml: `seed` is "7"; use a whole number from 0 (below 2^63)"#);
    insta::assert_snapshot!(of("run.toml", "deterministic = 1"), @"run.toml: `deterministic` is 1; use true or false");
    insta::assert_snapshot!(of("run.toml", "precision = 32"), @"run.toml: `precision` is 32; use one of auto, 32-true, 64-true, 16-mixed, bf16-mixed, 16-true, bf16-true");
    insta::assert_snapshot!(of("run.toml", "devices = []"), @"run.toml: `devices` is []; use `auto`, `all` (or -1), a count from 1 (`2`), or different device ids (`0,2`; one alone is `0,`)");
    insta::assert_snapshot!(of("run.toml", "max_time = 01:30:00"), @"run.toml: `max_time` is 01:30:00; use a time with units (`90s`, `45m`, `1h30m`, `2d`) or as `DD:HH:MM:SS`, or leave it out (`none`)");
    insta::assert_snapshot!(of("run.toml", "limit_train_batches = nan"), @"run.toml: `limit_train_batches` is nan; use a number of batches from 0 (`10`), or a fraction with a point from 0.0 to 1.0 (`0.5`)");
    insta::assert_snapshot!(of("run.toml", "min_epochs = 5\nmax_epochs = 3"), @"run.toml: `min_epochs` is 5, above `max_epochs`, which is 3; lower the one or raise the other");
    insta::assert_snapshot!(of("run.toml", "max_epoch = 3"), @"run.toml: `max_epoch` is no setting; use one of accelerator, devices, num_nodes, strategy, sync_batchnorm, check_replicas_every_n_steps, collective_timeout, precision, loss_scale, full_precision, seed, deterministic, max_epochs, max_steps, max_time, min_epochs, min_steps, limit_train_batches, limit_val_batches, limit_test_batches, limit_predict_batches, overfit_batches, fast_dev_run, val_check_interval, check_val_every_n_epoch, num_sanity_val_steps, log_every_n_steps, accumulate_grad_batches, gradient_clip, log_grad_norms, log_histograms, log_system_metrics, weight_averaging, gradient_checkpointing, offload_optimizer, detect_anomaly, run_dir, progress, dashboard, profiler, metrics_addr, model_summary, checkpointing, checkpoint_every_n_steps, monitor, save_top_k, checkpoint_in_background, resume, resume_strict, logger");
    insta::assert_snapshot!(of("run.toml", "max_epochs ="), @r#"
    run.toml: not TOML: TOML parse error at line 1, column 13
      |
    1 | max_epochs =
      |             ^
    string values must be quoted, expected literal string
    "#);
    insta::assert_snapshot!(of("run.json", "[1]"), @"run.json: not a JSON object of settings: invalid type: sequence, expected a map at line 1 column 0");
    insta::assert_snapshot!(of("run.ini", ""), @"run.ini: a configuration ends in .toml, .json, .yaml or .yml, not in `ini`");
    insta::assert_snapshot!(
        folder.shorten(&parse_error(&["--config", &format!("{}/gone.toml", folder.0.path().display())])),
        @"error: cannot read the configuration `gone.toml`: No such file or directory (os error 2)"
    );
}

#[cfg(feature = "yaml")]
#[test]
fn messages_for_yaml() {
    let folder = Folder::new();
    let file = folder.file("run.yaml", "seed: 1\nmax_epochs: many\n");
    let error = TrainerConfig::from_file(file).unwrap_err();
    insta::assert_snapshot!(folder.shorten(&error.to_string()), @r#"run.yaml: `max_epochs` is "many"; use a whole number from 0 (below 2^63), or leave it out (`none`)"#);
    let file = folder.file("run.yml", "- seed\n");
    let error = TrainerConfig::from_file(file).unwrap_err();
    insta::assert_snapshot!(folder.shorten(&error.to_string()), @r#"
    run.yml: not a YAML mapping of settings: error: line 1 column 1: expected mapping start
     --> <input>:1:1
      |
    1 | - seed
      | ^ expected mapping start
    "#);
}

#[test]
fn contradictions_name_the_settings_and_their_values() {
    insta::assert_snapshot!(toml_error("min_epochs = 1001"), @"`min_epochs` is 1001, above `max_epochs`, which is 1000 unless it is set; set it");
    insta::assert_snapshot!(toml_error("min_steps = 2\nmax_steps = 1"), @"`min_steps` is 2, above `max_steps`, which is 1; lower the one or raise the other");
    insta::assert_snapshot!(toml_error("val_check_interval = 5\ncheck_val_every_n_epoch = 2"), @"`val_check_interval` is 5 batches, which are counted across epochs, but `check_val_every_n_epoch` is 2; leave one of them out");
    insta::assert_snapshot!(toml_error("fast_dev_run = true\noverfit_batches = 4"), @"`fast_dev_run` is 1 and `overfit_batches` is 4, and both say how many batches to run; leave one of them out");
    insta::assert_snapshot!(toml_error("overfit_batches = 4\nlimit_train_batches = 1"), @"`overfit_batches` is 4 and `limit_train_batches` is 1, and both say how many batches to train on; leave one of them out");
    // Each of these alone, or with what it allows, is fine.
    for text in [
        "min_epochs = 1001\nmax_steps = 5",
        "min_epochs = 3\nmax_epochs = 3",
        "val_check_interval = 0.5\ncheck_val_every_n_epoch = 2",
        "fast_dev_run = true\noverfit_batches = 0",
        "overfit_batches = 4\nlimit_train_batches = 1.0\nlimit_val_batches = 0",
    ] {
        TrainerConfig::from_toml_str(text).unwrap();
    }
}

#[test]
fn impossible_values_of_a_program_are_found() {
    let message = |config: TrainerConfig| config.check().unwrap_err().to_string();
    let new = TrainerConfig::new;
    insta::assert_snapshot!(message(new().with_limit_val_batches(Limit::Fraction(f64::NAN))), @"`limit_val_batches` is Fraction(NaN); use a number of batches from 0 (`10`), or a fraction with a point from 0.0 to 1.0 (`0.5`)");
    insta::assert_snapshot!(message(new().with_devices(Devices::Ids(vec![]))), @"`devices` is Ids([]); use `auto`, `all` (or -1), a count from 1 (`2`), or different device ids (`0,2`; one alone is `0,`)");
    insta::assert_snapshot!(message(new().with_accelerator(" ")), @r#"`accelerator` is AcceleratorName(""); use `auto` or the name of an accelerator"#);
    insta::assert_snapshot!(message(new().with_accumulate_grad_batches(0)), @"`accumulate_grad_batches` is 0; use a whole number from 1 (below 2^63)");
    insta::assert_snapshot!(message(new().with_max_epochs(u64::MAX)), @"`max_epochs` is Some(18446744073709551615); use a whole number from 0 (below 2^63), or leave it out (`none`)");
    let impossible = [
        new().with_devices(0),
        new().with_devices([1, 1]),
        new().with_limit_train_batches(Limit::Fraction(-0.5)),
        new().with_val_check_interval(ValCheckInterval::Fraction(0.0)),
        new().with_val_check_interval(ValCheckInterval::Batches(0)),
        new().with_val_check_interval(ValCheckInterval::Time(WallTime::ZERO)),
        new().with_gradient_clip(GradientClip::Norm(-1.0)),
        new().with_gradient_clip(GradientClip::Value(f64::INFINITY)),
        new().with_logger(["csv", "csv"]),
        new().with_logger(["a,b"]),
        new().with_run_dir(""),
        new().with_check_val_every_n_epoch(0),
        new().with_log_every_n_steps(0),
    ];
    for config in impossible {
        assert!(config.check().is_err(), "{config:?}");
    }
}
