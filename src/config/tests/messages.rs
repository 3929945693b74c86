//! What people read when a setting is wrong.

use super::*;

fn toml_error(text: &str) -> String {
    TrainerConfig::from_toml_str(text).unwrap_err().to_string()
}

#[test]
fn messages_for_flags() {
    insta::assert_snapshot!(parse_error(&["--max-epochs=-3"]), @"");
    insta::assert_snapshot!(parse_error(&["--max-epochs", "-3"]), @"");
    insta::assert_snapshot!(parse_error(&["--seed=18446744073709551615"]), @"");
    insta::assert_snapshot!(parse_error(&["--devices", "0"]), @"");
    insta::assert_snapshot!(parse_error(&["--devices", "0,0"]), @"");
    insta::assert_snapshot!(parse_error(&["--precision", "bf16"]), @"");
    insta::assert_snapshot!(parse_error(&["--accelerator", ""]), @"");
    insta::assert_snapshot!(parse_error(&["--limit-val-batches", "1.5"]), @"");
    insta::assert_snapshot!(parse_error(&["--val-check-interval", "0"]), @"");
    insta::assert_snapshot!(parse_error(&["--log-every-n-steps", "0"]), @"");
    insta::assert_snapshot!(parse_error(&["--log-every-n-steps", "-1"]), @"");
    insta::assert_snapshot!(parse_error(&["--gradient-clip", "0"]), @"");
    insta::assert_snapshot!(parse_error(&["--max-time", "90"]), @"");
    insta::assert_snapshot!(parse_error(&["--deterministic=maybe"]), @"");
    insta::assert_snapshot!(parse_error(&["--logger", "csv,csv"]), @"");
    insta::assert_snapshot!(parse_error(&["--progress", "rich"]), @"");
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
    insta::assert_snapshot!(of("run.toml", "max_epochs = -3"), @"");
    insta::assert_snapshot!(of("run.toml", "max_epochs = 3.0"), @"");
    insta::assert_snapshot!(of("run.toml", "seed = \"7\""), @"");
    insta::assert_snapshot!(of("run.toml", "deterministic = 1"), @"");
    insta::assert_snapshot!(of("run.toml", "precision = 32"), @"");
    insta::assert_snapshot!(of("run.toml", "devices = []"), @"");
    insta::assert_snapshot!(of("run.toml", "max_time = 01:30:00"), @"");
    insta::assert_snapshot!(of("run.toml", "limit_train_batches = nan"), @"");
    insta::assert_snapshot!(of("run.toml", "min_epochs = 5\nmax_epochs = 3"), @"");
    insta::assert_snapshot!(of("run.toml", "max_epoch = 3"), @"");
    insta::assert_snapshot!(of("run.toml", "max_epochs ="), @"");
    insta::assert_snapshot!(of("run.json", "[1]"), @"");
    insta::assert_snapshot!(of("run.ini", ""), @"");
    insta::assert_snapshot!(
        folder.shorten(&parse_error(&["--config", &format!("{}/gone.toml", folder.0.path().display())])),
        @""
    );
}

#[cfg(feature = "yaml")]
#[test]
fn messages_for_yaml() {
    let folder = Folder::new();
    let file = folder.file("run.yaml", "seed: 1\nmax_epochs: many\n");
    let error = TrainerConfig::from_file(file).unwrap_err();
    insta::assert_snapshot!(folder.shorten(&error.to_string()), @"");
    let file = folder.file("run.yml", "- seed\n");
    let error = TrainerConfig::from_file(file).unwrap_err();
    insta::assert_snapshot!(folder.shorten(&error.to_string()), @"");
}

#[test]
fn contradictions_name_the_settings_and_their_values() {
    insta::assert_snapshot!(toml_error("min_epochs = 1001"), @"");
    insta::assert_snapshot!(toml_error("min_steps = 2\nmax_steps = 1"), @"");
    insta::assert_snapshot!(toml_error("val_check_interval = 5\ncheck_val_every_n_epoch = 2"), @"");
    insta::assert_snapshot!(toml_error("fast_dev_run = true\noverfit_batches = 4"), @"");
    insta::assert_snapshot!(toml_error("overfit_batches = 4\nlimit_train_batches = 1"), @"");
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
    insta::assert_snapshot!(message(new().with_limit_val_batches(Limit::Fraction(f64::NAN))), @"");
    insta::assert_snapshot!(message(new().with_devices(Devices::Ids(vec![]))), @"");
    insta::assert_snapshot!(message(new().with_accelerator(" ")), @"");
    insta::assert_snapshot!(message(new().with_accumulate_grad_batches(0)), @"");
    insta::assert_snapshot!(message(new().with_max_epochs(u64::MAX)), @"");
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
