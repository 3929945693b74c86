#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests"
)]

mod messages;
mod random;

use super::*;
use clap::{CommandFactory, Parser};
use std::time::Duration;

#[derive(Debug, Parser)]
#[command(name = "train")]
struct Args {
    #[command(flatten)]
    trainer: TrainerConfig,
    #[arg(long)]
    data_dir: Option<PathBuf>,
}

fn parse(flags: &[&str]) -> Result<TrainerConfig, clap::Error> {
    Args::try_parse_from(["train"].iter().chain(flags)).map(|args| args.trainer)
}

/// The message, without clap's usage lines.
fn parse_error(flags: &[&str]) -> String {
    let error = parse(flags).unwrap_err();
    assert_eq!(error.exit_code(), 2);
    let text = error.to_string();
    text.split("\n\n").next().unwrap().to_owned()
}

/// A file in a folder of its own; messages name it by its path, which is cut to `name`.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn file(&self, name: &str, text: &str) -> String {
        let path = self.0.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }

    fn shorten(&self, message: &str) -> String {
        message.replace(&format!("{}/", self.0.path().display()), "")
    }
}

#[test]
fn nothing_given_is_the_default() {
    assert_eq!(parse(&[]).unwrap(), TrainerConfig::default());
    assert_eq!(
        TrainerConfig::from_toml_str("").unwrap(),
        TrainerConfig::default()
    );
    assert_eq!(TrainerConfig::default().problem().map(|p| p.message), None);
}

#[test]
fn defaults_as_toml() {
    insta::assert_snapshot!(TrainerConfig::default().to_toml().unwrap(), @r#"
    accelerator = "auto"
    devices = "auto"
    strategy = "auto"
    sync_batchnorm = true
    collective_timeout = "30m"
    precision = "32-true"
    loss_scale = "dynamic"
    full_precision = "none"
    seed = 42
    deterministic = false
    limit_train_batches = 1.0
    limit_val_batches = 1.0
    limit_test_batches = 1.0
    limit_predict_batches = 1.0
    overfit_batches = 0
    fast_dev_run = 0
    val_check_interval = 1.0
    check_val_every_n_epoch = 1
    num_sanity_val_steps = 2
    log_every_n_steps = 50
    accumulate_grad_batches = 1
    log_grad_norms = "off"
    log_histograms = false
    log_system_metrics = false
    gradient_checkpointing = false
    offload_optimizer = false
    detect_anomaly = false
    run_dir = "runs"
    progress = "auto"
    dashboard = false
    model_summary = true
    checkpointing = true
    checkpoint_in_background = false
    resume_strict = false
    logger = ["csv"]
    "#);
}

#[test]
fn every_setting_is_read_from_its_flag() {
    let config = parse(&[
        "--accelerator=CPU",
        "--devices",
        "-1",
        "--precision",
        "bf16-mixed",
        "--loss-scale=dynamic:1024",
        "--full-precision",
        "head.*, norm",
        "--seed=7",
        "--deterministic",
        "--max-epochs=3",
        "--max-steps=100",
        "--max-time=01:02:03:04",
        "--min-epochs=1",
        "--min-steps=10",
        "--limit-train-batches=1",
        "--limit-val-batches=1.0",
        "--limit-test-batches=0",
        "--limit-predict-batches=0.25",
        "--fast-dev-run",
        "--val-check-interval=10m",
        "--check-val-every-n-epoch=2",
        "--num-sanity-val-steps",
        "-1",
        "--log-every-n-steps=5",
        "--accumulate-grad-batches=4",
        "--gradient-clip=value:0.5",
        "--log-grad-norms",
        "--log-histograms",
        "--log-system-metrics=yes",
        "--weight-averaging=ema:0.99",
        "--gradient-checkpointing",
        "--offload-optimizer",
        "--detect-anomaly=true",
        "--run-dir=out",
        "--progress=plain",
        "--dashboard",
        "--profiler=trace",
        "--metrics-addr=[::1]:9464",
        "--model-summary=false",
        "--checkpointing=off",
        "--logger=csv,JSONL",
    ]);
    let expected = TrainerConfig::new()
        .with_accelerator("cpu")
        .with_devices(Devices::All)
        .with_precision(Precision::Bf16Mixed)
        .with_loss_scale(LossScale::Dynamic { start: 1024.0 })
        .with_full_precision(["head.*", "norm"])
        .with_seed(7)
        .with_deterministic(true)
        .with_max_epochs(3)
        .with_max_steps(100)
        .with_max_time(WallTime::from(Duration::from_secs(93_784)))
        .with_min_epochs(1)
        .with_min_steps(10)
        .with_limit_train_batches(Limit::Batches(1))
        .with_limit_val_batches(Limit::Fraction(1.0))
        .with_limit_test_batches(Limit::NONE)
        .with_limit_predict_batches(Limit::Fraction(0.25))
        .with_fast_dev_run(1)
        .with_val_check_interval(ValCheckInterval::Time(Duration::from_secs(600).into()))
        .with_check_val_every_n_epoch(2)
        .with_num_sanity_val_steps(SanitySteps::All)
        .with_log_every_n_steps(5)
        .with_accumulate_grad_batches(4)
        .with_gradient_clip(GradientClip::Value(0.5))
        .with_log_grad_norms(GradNorms::Parts)
        .with_log_histograms(true)
        .with_log_system_metrics(true)
        .with_weight_averaging(WeightAveraging::Ema { decay: 0.99 })
        .with_gradient_checkpointing(true)
        .with_offload_optimizer(true)
        .with_detect_anomaly(true)
        .with_run_dir("out")
        .with_progress(ProgressMode::Plain)
        .with_dashboard(true)
        .with_profiler(ProfilerMode::Trace)
        .with_metrics_addr("[::1]:9464".parse::<SocketAddr>().unwrap())
        .with_model_summary(false)
        .with_checkpointing(false)
        .with_logger(["csv", "jsonl"]);
    assert_eq!(config.unwrap(), expected);
    assert_eq!(
        parse(&["--overfit-batches=0.1"]).unwrap(),
        TrainerConfig::new().with_overfit_batches(Limit::Fraction(0.1))
    );
}

#[test]
fn bare_flags_leave_the_next_argument_alone() {
    let args = Args::try_parse_from([
        "train",
        "--fast-dev-run",
        "--deterministic",
        "--data-dir",
        "d",
    ]);
    let args = args.unwrap();
    assert_eq!(args.data_dir, Some("d".into()));
    assert_eq!(args.trainer.fast_dev_run.batches(), Some(1));
    assert_eq!(
        parse(&["--fast-dev-run=5"]).unwrap().fast_dev_run.batches(),
        Some(5)
    );
    assert_eq!(
        parse(&["--fast-dev-run=0"]).unwrap().fast_dev_run,
        FastDevRun::OFF
    );
    assert!(parse(&["--deterministic", "true"]).is_err());
}

/// Setting variables of the own process is unsafe, so the test runs itself in a child that has
/// them.
#[test]
fn flags_over_environment_over_files_over_defaults() {
    let folder = Folder::new();
    if std::env::var_os("FIREBOX_MIN_STEPS").is_none() {
        let name = "config::tests::flags_over_environment_over_files_over_defaults";
        let output = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name])
            .env("FIREBOX_MIN_STEPS", "2")
            .env("FIREBOX_MAX_STEPS", "2")
            .env("FIREBOX_DETERMINISTIC", "1")
            .env("FIREBOX_SEED", "")
            .output()
            .unwrap();
        let report = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success() && report.contains("1 passed"),
            "{report}"
        );
        return;
    }

    let first = folder.file(
        "first.toml",
        "max_epochs = 1\nmin_steps = 1\nseed = 1\ndevices = 1",
    );
    let second = folder.file("second.toml", "max_steps = 1\ndevices = 3");
    let mut args = Args {
        trainer: TrainerConfig::new().with_max_epochs(9).with_min_epochs(0),
        data_dir: None,
    };
    args.try_update_from([
        "train",
        "--max-steps=3",
        "--config",
        &first,
        "--config",
        &second,
    ])
    .unwrap();
    let expected = TrainerConfig::new()
        .with_max_steps(3) // default, second file, variable, flag
        .with_min_steps(2) // default, first file, variable
        .with_deterministic(true) // default, variable
        .with_seed(1) // default, first file; the variable is empty
        .with_max_epochs(1) // the program's default, first file
        .with_devices(3) // default, both files
        .with_min_epochs(0); // the program's default
    assert_eq!(args.trainer, expected);

    let message = parse_error(&["--config", &first, "--max-steps=1"]);
    assert_eq!(
        message,
        "error: `min_steps` is 2, above `max_steps`, which is 1; lower the one or raise the other \
         (`min_steps` from FIREBOX_MIN_STEPS, `max_steps` from --max-steps)"
    );
}

#[test]
fn a_program_keeps_its_own_default_where_nothing_is_set() {
    let mut config = parse(&["--seed=1"]).unwrap();
    config.max_epochs.get_or_insert(3);
    assert_eq!(config.max_epochs, Some(3));
    assert_eq!(config.epoch_limit(), Some(3));
    assert_eq!(TrainerConfig::new().epoch_limit(), Some(1000));
    assert_eq!(TrainerConfig::new().with_max_steps(5).epoch_limit(), None);
}

#[test]
fn none_unsets() {
    let folder = Folder::new();
    let file = folder.file("run.toml", "max_steps = 5\ngradient_clip = 1.0");
    let config = parse(&["--config", &file, "--max-steps=none", "--logger=none"]).unwrap();
    assert_eq!(config.max_steps, None);
    assert_eq!(config.gradient_clip, Some(GradientClip::Norm(1.0)));
    assert_eq!(config.logger, LoggerNames::none());

    let file = folder.file("none.toml", "max_steps = \"none\"");
    let mut args = Args {
        trainer: TrainerConfig::new().with_max_steps(3),
        data_dir: None,
    };
    args.try_update_from(["train", "--config", &file]).unwrap();
    assert_eq!(args.trainer.max_steps, None);
}

#[test]
fn formats_agree() {
    let folder = Folder::new();
    let toml = folder.file(
        "run.toml",
        "precision = \"32-true\"\ndevices = [0, 2]\nlimit_train_batches = 1\n\
         limit_val_batches = 1.0\nmax_time = \"1h30m\"\nval_check_interval = \"10m\"\n\
         gradient_clip = 1\nprogress = \"off\"\nlogger = [\"csv\", \"jsonl\"]\n\
         fast_dev_run = false\nnum_sanity_val_steps = -1\n",
    );
    let json = folder.file(
        "run.json",
        r#"{"precision": "32-true", "devices": "0,2", "limit_train_batches": 1,
            "limit_val_batches": 1.0, "max_time": "1h30m", "val_check_interval": "10m",
            "gradient_clip": "norm:1.0", "progress": "off", "logger": "csv,jsonl",
            "fast_dev_run": 0, "num_sanity_val_steps": "all", "max_epochs": null}"#,
    );
    let expected = TrainerConfig::new()
        .with_devices([0, 2])
        .with_limit_train_batches(Limit::Batches(1))
        .with_max_time(WallTime::from(Duration::from_secs(5400)))
        .with_val_check_interval(ValCheckInterval::Time(Duration::from_secs(600).into()))
        .with_gradient_clip(GradientClip::Norm(1.0))
        .with_progress(ProgressMode::Off)
        .with_logger(["csv", "jsonl"])
        .with_num_sanity_val_steps(SanitySteps::All);
    assert_eq!(TrainerConfig::from_file(toml).unwrap(), expected);
    assert_eq!(TrainerConfig::from_file(json).unwrap(), expected);
    #[cfg(feature = "yaml")]
    {
        let yaml = folder.file(
            "run.yaml",
            "precision: 32-true\ndevices: 0,2\nlimit_train_batches: 1\nlimit_val_batches: 1.0\n\
             max_time: 1h30m\nval_check_interval: 10m\ngradient_clip: norm:1.0\nprogress: off\n\
             logger: [csv, jsonl]\nfast_dev_run: false\nnum_sanity_val_steps: -1\nmax_epochs: ~\n",
        );
        assert_eq!(TrainerConfig::from_file(yaml).unwrap(), expected);
        let empty = folder.file("empty.yaml", "# nothing\n");
        assert_eq!(
            TrainerConfig::from_file(empty).unwrap(),
            TrainerConfig::new()
        );
    }
}

#[test]
fn print_config_prints_what_reads_back() {
    let flags = [
        "--seed=7",
        "--max-time=90s",
        "--run-dir=\u{1b}[31m \"x\"",
        "--devices=0,",
    ];
    let config = parse(&flags).unwrap();
    let printed = parse(&[&flags[..], &["--print-config"]].concat()).unwrap_err();
    assert_eq!((printed.exit_code(), printed.use_stderr()), (0, false));
    assert_eq!(printed.to_string(), config.to_toml().unwrap());
    assert_eq!(
        TrainerConfig::from_toml_str(&printed.to_string()).unwrap(),
        config
    );
    // A wrong setting is an error all the same.
    assert_eq!(
        parse(&["--print-config", "--devices=0"])
            .unwrap_err()
            .exit_code(),
        2
    );
}

#[test]
fn saved_reads_back() {
    let folder = Folder::new();
    let path = folder.0.path().join("config.toml");
    let config = TrainerConfig::new().with_max_epochs(3);
    config.save(&path).unwrap();
    assert_eq!(TrainerConfig::from_file(path).unwrap(), config);
    let error = config
        .save(folder.0.path().join("gone/config.toml"))
        .unwrap_err();
    assert_eq!(error.kind(), crate::ErrorKind::Io);
}

#[test]
fn help_shows_every_setting_once() {
    Args::command().debug_assert();
    let help = Args::command().render_help().to_string();
    for setting in SETTINGS {
        let flag = format!(" {}", setting.flag());
        let times = help.lines().filter(|line| {
            line.find(&flag)
                .is_some_and(|at| line[at + flag.len()..].starts_with([' ', '[']))
        });
        assert_eq!(times.count(), 1, "{flag}\n{help}");
        assert_eq!(
            help.matches(&format!("[env: {}]", setting.variable()))
                .count(),
            1
        );
    }
    insta::assert_snapshot!(help, @r#"
    Usage: train [OPTIONS]

    Options:
          --data-dir <DATA_DIR>  
      -h, --help                 Print help

    Trainer:
          --config <FILE>
              Take settings from this file: .toml, .json or .yaml; of several, the later wins [env: FIREBOX_CONFIG]
          --print-config
              Print the settings as TOML, merged from files, environment and flags, and exit
          --accelerator <NAME>
              The kind of hardware: `auto`, `cpu`, `gpu`, or the name of an accelerator such as `cuda` [env: FIREBOX_ACCELERATOR] [default: auto]
          --devices <DEVICES>
              Which devices: `auto`, `all`, how many (`2`), or which (`0,2`; one alone is `0,`) [env: FIREBOX_DEVICES] [default: auto]
          --num-nodes <N>
              How many nodes the run is to have; that of the launcher (`mpirun`, `srun`) is checked against it [env: FIREBOX_NUM_NODES]
          --strategy <STRATEGY>
              How several devices train one model: `auto`, `ddp`, `zero1`, or `fedavg:N` [env: FIREBOX_STRATEGY] [default: auto]
          --sync-batchnorm[=<BOOL>]
              Take the statistics of `firebox::nn::SyncBatchNorm` over all devices [env: FIREBOX_SYNC_BATCHNORM] [default: true]
          --check-replicas-every-n-steps <N>
              Compare the parameters of all devices every n optimizer steps, and stop if they differ [env: FIREBOX_CHECK_REPLICAS_EVERY_N_STEPS]
          --collective-timeout <TIME>
              How long a device waits for the others before the run fails [env: FIREBOX_COLLECTIVE_TIMEOUT] [default: 30m]
          --precision <PRECISION>
              The number format: `auto`, `32-true`, `64-true`, `16-mixed`, `bf16-mixed`, `16-true` or `bf16-true` [env: FIREBOX_PRECISION] [default: 32-true]
          --loss-scale <SCALE>
              What the loss is multiplied with in `16-mixed`: `dynamic`, `dynamic:N`, or a number [env: FIREBOX_LOSS_SCALE] [default: dynamic]
          --full-precision <PATHS>
              Parts of the model whose products are computed in 32 bits in a mixed precision, by path (`head.*`) [env: FIREBOX_FULL_PRECISION] [default: none]
          --seed <N>
              Where all randomness starts from [env: FIREBOX_SEED] [default: 42]
          --deterministic[=<BOOL>]
              Refuse operations whose result can differ from run to run; on the CPU there are none [env: FIREBOX_DETERMINISTIC] [default: false]
          --max-epochs <N>
              Stop after this many epochs; 1000 unless `max_steps` or `max_time` is set [env: FIREBOX_MAX_EPOCHS]
          --max-steps <N>
              Stop after this many optimizer steps [env: FIREBOX_MAX_STEPS]
          --max-time <TIME>
              Stop after this long: `90s`, `1h30m`, or `DD:HH:MM:SS` [env: FIREBOX_MAX_TIME]
          --min-epochs <N>
              Let nothing stop the run early before this many epochs [env: FIREBOX_MIN_EPOCHS]
          --min-steps <N>
              Let nothing stop the run early before this many optimizer steps [env: FIREBOX_MIN_STEPS]
          --limit-train-batches <BATCHES|FRACTION>
              Train on this much of each epoch: batches (`10`), or a fraction with a point (`0.5`) [env: FIREBOX_LIMIT_TRAIN_BATCHES] [default: 1.0]
          --limit-val-batches <BATCHES|FRACTION>
              Validate on this much of the validation data [env: FIREBOX_LIMIT_VAL_BATCHES] [default: 1.0]
          --limit-test-batches <BATCHES|FRACTION>
              Test on this much of the test data [env: FIREBOX_LIMIT_TEST_BATCHES] [default: 1.0]
          --limit-predict-batches <BATCHES|FRACTION>
              Predict this much of the prediction data [env: FIREBOX_LIMIT_PREDICT_BATCHES] [default: 1.0]
          --overfit-batches <BATCHES|FRACTION>
              Train and validate on the first batches of each loader, unshuffled, to see the model overfit; 0 is off [env: FIREBOX_OVERFIT_BATCHES] [default: 0]
          --fast-dev-run[=<BATCHES>]
              Try every loop with this many batches, once, without logs and checkpoints; alone it means 1 [env: FIREBOX_FAST_DEV_RUN] [default: 0]
          --val-check-interval <FRACTION|BATCHES|TIME>
              Validate this often: a fraction of the epoch (`0.25`), batches (`500`), or a time (`10m`) [env: FIREBOX_VAL_CHECK_INTERVAL] [default: 1.0]
          --check-val-every-n-epoch <N>
              Validate only in every n-th epoch [env: FIREBOX_CHECK_VAL_EVERY_N_EPOCH] [default: 1]
          --num-sanity-val-steps <BATCHES>
              Validate this many batches before training, to find mistakes early; `all` (or -1) for all, 0 is off [env: FIREBOX_NUM_SANITY_VAL_STEPS] [default: 2]
          --log-every-n-steps <N>
              Give step values to the loggers every n optimizer steps [env: FIREBOX_LOG_EVERY_N_STEPS] [default: 50]
          --accumulate-grad-batches <N>
              Average the gradients of this many batches for one optimizer step [env: FIREBOX_ACCUMULATE_GRAD_BATCHES] [default: 1]
          --gradient-clip <CLIP>
              Clip gradients: to a global norm (`1.0` or `norm:1.0`), or each entry (`value:0.5`) [env: FIREBOX_GRADIENT_CLIP]
          --log-grad-norms[=<OF>]
              Log the gradients' norm of each of the model's `parts`, or of each of its `layers`, beside the global one [env: FIREBOX_LOG_GRAD_NORMS] [default: off]
          --log-histograms[=<BOOL>]
              Give histograms of all parameters and gradients to the loggers that show them, with step values [env: FIREBOX_LOG_HISTOGRAMS] [default: false]
          --log-system-metrics[=<BOOL>]
              Log throughput, memory, use of the devices and energy with step values [env: FIREBOX_LOG_SYSTEM_METRICS] [default: false]
          --weight-averaging <AVERAGE>
              Average the weights over the steps: `ema:0.999`, or `swa` from 80 % of the epochs on [env: FIREBOX_WEIGHT_AVERAGING]
          --gradient-checkpointing[=<BOOL>]
              Compute the activations of a model's blocks again in the backward pass, to need less memory [env: FIREBOX_GRADIENT_CHECKPOINTING] [default: false]
          --offload-optimizer[=<BOOL>]
              Keep the optimizers' state in the host's memory between two steps; for GPUs [env: FIREBOX_OFFLOAD_OPTIMIZER] [default: false]
          --detect-anomaly[=<BOOL>]
              Stop at the first NaN or infinite number, and name its layer; slow [env: FIREBOX_DETECT_ANOMALY] [default: false]
          --run-dir <PATH>
              The folder under which each run makes its own `version_N` folder [env: FIREBOX_RUN_DIR] [default: runs]
          --progress <MODE>
              How progress is shown: `auto`, `bar`, `plain` lines, or `off` [env: FIREBOX_PROGRESS] [default: auto]
          --dashboard[=<BOOL>]
              Show a full screen with curves in place of the progress bar [env: FIREBOX_DASHBOARD] [default: false]
          --profiler <MODE>
              Tell where the time goes: `simple` for a table, `trace` for every span as well [env: FIREBOX_PROFILER]
          --metrics-addr <ADDRESS>
              Serve the run's values to Prometheus at this address (`127.0.0.1:9464`) [env: FIREBOX_METRICS_ADDR]
          --model-summary[=<BOOL>]
              Print the model's parts and their parameter counts at the start [env: FIREBOX_MODEL_SUMMARY] [default: true]
          --checkpointing[=<BOOL>]
              Write checkpoints [env: FIREBOX_CHECKPOINTING] [default: true]
          --checkpoint-every-n-steps <N>
              Also write a checkpoint every n optimizer steps [env: FIREBOX_CHECKPOINT_EVERY_N_STEPS]
          --monitor <[min:|max:]NAME>
              Keep the best checkpoints by this logged value, smaller first; `max:val/acc` for larger first [env: FIREBOX_MONITOR]
          --save-top-k <K>
              Keep so many of the best checkpoints, beside the last; `all` (or -1) for every one; 1 unless set [env: FIREBOX_SAVE_TOP_K]
          --checkpoint-in-background[=<BOOL>]
              Write checkpoints to the disk while training goes on [env: FIREBOX_CHECKPOINT_IN_BACKGROUND] [default: false]
          --resume <last|best|PATH>
              Go on from a checkpoint: `last`, `best`, or its path; with `last` and none there, start anew [env: FIREBOX_RESUME]
          --resume-strict[=<BOOL>]
              Refuse to resume inexactly: from an older checkpoint because the newest is damaged, or with another seed [env: FIREBOX_RESUME_STRICT] [default: false]
          --logger <NAMES>
              The loggers, with commas between them: csv, jsonl, tensorboard, mlflow; `none` for none [env: FIREBOX_LOGGER] [default: csv]
    "#);
}

#[test]
fn limits_resolve() {
    let resolve = |text: &str, batches| text.parse::<Limit>().unwrap().resolve(batches, "train");
    assert_eq!(resolve("1", Some(64)).unwrap(), Some(1));
    assert_eq!(resolve("1.0", Some(64)).unwrap(), Some(64));
    assert_eq!(resolve("100", Some(64)).unwrap(), Some(64));
    assert_eq!(resolve("0.3", Some(10)).unwrap(), Some(3));
    assert_eq!(resolve("0.0", None).unwrap(), Some(0));
    assert_eq!(resolve("1.0", None).unwrap(), None);
    assert_eq!(resolve("7", None).unwrap(), Some(7));
    assert_eq!(resolve("0.5", Some(0)).unwrap(), Some(0));
    insta::assert_snapshot!(resolve("0.01", Some(64)).unwrap_err(), @"0.01 of the 64 train batches is no batch; use 0.0157 or more, or a whole number of batches");
    insta::assert_snapshot!(resolve("0.5", None).unwrap_err(), @"0.5 of the train batches is unknown, because the data does not say how many it has; use 1.0, or a whole number of batches");
}

#[test]
fn validation_intervals_resolve() {
    let third = ValCheckInterval::Fraction(1.0 / 3.0);
    assert_eq!(third.batches(Some(64)).unwrap(), Some(21));
    assert_eq!(third.batches(Some(2)).unwrap(), Some(1));
    assert_eq!(ValCheckInterval::Fraction(1.0).batches(None).unwrap(), None);
    assert_eq!(
        ValCheckInterval::Batches(5).batches(Some(2)).unwrap(),
        Some(5)
    );
    insta::assert_snapshot!(third.batches(None).unwrap_err(), @"`val_check_interval` is 0.3333333333333333 of an epoch, but the training data does not say how many batches it has; use 1.0, a number of batches, or a time");
}

#[test]
fn times_are_read_and_printed() {
    let printed = |text: &str| text.parse::<WallTime>().map(|t| t.to_string()).ok();
    assert_eq!(printed("90s").as_deref(), Some("1m30s"));
    assert_eq!(printed("45m").as_deref(), Some("45m"));
    assert_eq!(printed("1h30m").as_deref(), Some("1h30m"));
    assert_eq!(printed("00:36:00:05").as_deref(), Some("1d12h5s"));
    assert_eq!(printed("1500ms").as_deref(), Some("1s500ms"));
    assert_eq!(printed("0s").as_deref(), Some("0s"));
    for wrong in [
        "",
        "90",
        "s",
        "1x",
        "1h 30m",
        "30m1h",
        "1h1h",
        "-1s",
        "1.5h",
        "1:00",
        "0:0:0:0:0",
        "00:00:-1:00",
        "1d:0:0:0",
        "99999999999999999999999999999999999999999d",
        "1h30",
    ] {
        assert_eq!(printed(wrong), None, "{wrong}");
    }
}
