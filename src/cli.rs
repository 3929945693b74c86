//! A whole command line for a program that trains: the subcommands `fit`, `validate`, `test` and
//! `predict`, and completions for shells.

use crate::config::TrainerConfig;
use crate::data::DataModule;
use crate::error::{Error, Result};
use crate::launch::{Launch, Recipe, launch};
use crate::module::{TrainModule, short_type_name};
use crate::trainer::Trainer;
use burn::tensor::Device;
use burn::tensor::backend::AutodiffBackend;
use clap::{Arg, ArgMatches, Args, Command, value_parser};
use clap_complete::Shell;
use std::ffi::OsString;
use std::process::ExitCode;

/// What a program trains: its own arguments, the model and the data. The trainer's settings are
/// arguments as well, and need no word.
///
/// ```no_run
/// # use firebox::testing::{Line, line_data};
/// use clap::Args;
/// use firebox::cli::{self, Experiment};
/// use firebox::data::Loaders;
/// use firebox::prelude::*;
/// use std::process::ExitCode;
///
/// /// Fits a line.
/// #[derive(Args)]
/// struct FitLine {
///     #[arg(long, default_value_t = 8)]
///     batch_size: usize,
/// }
///
/// impl Experiment for FitLine {
///     type Model<B: AutodiffBackend> = Line<B>;
///
///     fn model<B: AutodiffBackend>(&self, device: &B::Device) -> Result<Line<B>> {
///         Ok(Line::new(device))
///     }
///     fn data<B: AutodiffBackend>(&self) -> Result<impl DataModule<Line<B>>> {
///         Ok(Loaders::new(line_data().batch_size(self.batch_size)).with_val(line_data()))
///     }
/// }
///
/// fn main() -> ExitCode {
///     cli::run::<FitLine>()
/// }
/// ```
///
/// ```sh
/// fit_line fit --max-epochs 5 --batch-size 16      # `fit` may be left out
/// fit_line validate --resume best
/// fit_line test --resume runs/version_3/checkpoints/last --config run.toml
/// fit_line completions bash > /etc/bash_completion.d/fit_line
/// ```
pub trait Experiment: Args + Sized {
    /// The model, on any backend.
    type Model<B: AutodiffBackend>: TrainModule<Backend = B>;

    /// The model before training.
    ///
    /// # Errors
    /// Arguments it cannot be built with.
    fn model<B: AutodiffBackend>(&self, device: &Device<B>) -> Result<Self::Model<B>>;

    /// The data.
    ///
    /// # Errors
    /// Whatever went wrong.
    fn data<B: AutodiffBackend>(&self) -> Result<impl DataModule<Self::Model<B>>>;

    /// The trainer, with the callbacks and loggers that this program adds.
    ///
    /// # Errors
    /// Arguments it cannot be built with.
    fn trainer<B: AutodiffBackend>(
        &self,
        trainer: Trainer<Self::Model<B>>,
    ) -> Result<Trainer<Self::Model<B>>> {
        Ok(trainer)
    }

    /// Predicts with a trained model, for the subcommand `predict`: give the data to
    /// [`Trainer::predict_to`].
    ///
    /// # Errors
    /// Whatever went wrong; unless it is written, that there is nothing to predict.
    fn predict<B: AutodiffBackend>(
        &self,
        trainer: &mut Trainer<Self::Model<B>>,
        model: &Self::Model<B>,
    ) -> Result<()> {
        let _ = (trainer, model);
        Err(Error::config(format!(
            "this program predicts nothing; implement `predict` of `{}`",
            short_type_name::<Self>()
        )))
    }

    /// The program's own defaults; files, environment and flags win over them.
    fn config() -> TrainerConfig {
        TrainerConfig::default()
    }
}

/// The `main` of a program that trains: reads the command line, finds the accelerator and does what the
/// subcommand says, or trains if there is none. The exit code is that of [`launch`](crate::launch()).
pub fn run<E: Experiment>() -> ExitCode {
    match Program::<E>::parse(std::env::args_os()) {
        Ok(Some(program)) => launch(program),
        Ok(None) => ExitCode::SUCCESS,
        Err(error) => error.exit(),
    }
}

/// What is to be done with the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Task {
    Fit,
    Validate,
    Test,
    Predict,
}

impl Task {
    const ALL: [(&'static str, Self, &'static str); 4] = [
        (
            "fit",
            Self::Fit,
            "Train the model; what is done without a subcommand",
        ),
        (
            "validate",
            Self::Validate,
            "Validate a trained model; `--resume` says which checkpoint",
        ),
        (
            "test",
            Self::Test,
            "Test a trained model; `--resume` says which checkpoint",
        ),
        (
            "predict",
            Self::Predict,
            "Predict with a trained model; `--resume` says which checkpoint",
        ),
    ];
}

struct Program<E> {
    task: Task,
    experiment: E,
    config: TrainerConfig,
}

impl<E: Experiment> Program<E> {
    fn command() -> Command {
        let settings = |command: Command| TrainerConfig::augment_args(E::augment_args(command));
        let tasks = Task::ALL.map(|(name, _, about)| settings(Command::new(name)).about(about));
        let name = option_env!("CARGO_BIN_NAME").unwrap_or("program");
        settings(Command::new(name))
            .args_conflicts_with_subcommands(true)
            .subcommand_negates_reqs(true)
            .subcommands(tasks)
            .subcommand(
                Command::new("completions")
                    .about("Print completions for a shell")
                    .arg(
                        Arg::new("shell")
                            .required(true)
                            .value_parser(value_parser!(Shell)),
                    ),
            )
    }

    /// `None` if completions were asked for; they have been printed.
    fn parse(
        arguments: impl IntoIterator<Item = OsString>,
    ) -> std::result::Result<Option<Self>, clap::Error> {
        let mut arguments = arguments.into_iter().peekable();
        let name = arguments.peek().map(std::path::PathBuf::from);
        let name = name.and_then(|path| Some(path.file_stem()?.to_str()?.to_owned()));
        let name = name.unwrap_or_else(|| "program".to_owned());
        let mut command = Self::command().name(name.clone());
        let matches = command.try_get_matches_from_mut(arguments)?;
        match matches.subcommand() {
            Some(("completions", given)) => {
                if let Some(shell) = given.get_one::<Shell>("shell") {
                    clap_complete::generate(*shell, &mut command, name, &mut std::io::stdout());
                }
                Ok(None)
            }
            Some((name, given)) => {
                let known = Task::ALL.into_iter().find(|(task, ..)| *task == name);
                Self::new(known.map_or(Task::Fit, |(_, task, _)| task), given).map(Some)
            }
            None => Self::new(Task::Fit, &matches).map(Some),
        }
    }

    fn new(task: Task, matches: &ArgMatches) -> std::result::Result<Self, clap::Error> {
        let mut config = E::config();
        clap::FromArgMatches::update_from_arg_matches(&mut config, matches)?;
        Ok(Self {
            task,
            experiment: E::from_arg_matches(matches)?,
            config,
        })
    }
}

impl<E: Experiment> Recipe for Program<E> {
    fn config(&self) -> &TrainerConfig {
        &self.config
    }

    fn run<B: AutodiffBackend>(self, cx: Launch<B>) -> Result<()> {
        let experiment = self.experiment;
        let model = experiment.model::<B>(cx.device())?;
        let mut data = experiment.data::<B>()?;
        let mut trainer = experiment.trainer::<B>(cx.trainer())?;
        if self.task == Task::Fit {
            return trainer.fit(model, &mut data).map(drop);
        }
        let model = trainer.load(model)?;
        match self.task {
            Task::Validate => trainer.validate(&model, &mut data).map(drop),
            Task::Test => trainer.test(&model, &mut data).map(drop),
            Task::Fit | Task::Predict => experiment.predict(&mut trainer, &model),
        }
    }
}

#[cfg(all(test, feature = "flex"))]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::config::Resume;
    use crate::data::Loaders;
    use crate::launch::try_launch;
    use crate::testing::{Line, line_data};

    /// Fits a line.
    #[derive(Args)]
    struct FitLine {
        #[arg(long, default_value_t = 8)]
        batch_size: usize,
    }

    impl Experiment for FitLine {
        type Model<B: AutodiffBackend> = Line<B>;

        fn model<B: AutodiffBackend>(&self, device: &Device<B>) -> Result<Line<B>> {
            Ok(Line::new(device))
        }
        fn data<B: AutodiffBackend>(&self) -> Result<impl DataModule<Line<B>>> {
            let loader = line_data().batch_size(self.batch_size);
            Ok(Loaders::new(loader)
                .with_val(line_data())
                .with_test(line_data()))
        }
        fn config() -> TrainerConfig {
            TrainerConfig::new().with_max_epochs(7).with_seed(3)
        }
    }

    fn parse(arguments: &[&str]) -> std::result::Result<Program<FitLine>, clap::Error> {
        let arguments = ["/bin/fit_line"].iter().chain(arguments);
        Program::parse(arguments.map(OsString::from)).map(Option::unwrap)
    }

    #[test]
    fn the_command_is_valid() {
        Program::<FitLine>::command().debug_assert();
    }

    #[test]
    fn fit_may_be_left_out() {
        for arguments in [
            ["--max-epochs=2", "--batch-size=4"].as_slice(),
            &["fit", "--max-epochs=2", "--batch-size=4"],
        ] {
            let program = parse(arguments).unwrap();
            assert_eq!(program.task, Task::Fit);
            assert_eq!(program.experiment.batch_size, 4);
            // The flag wins over the program's own default, which wins over firebox's.
            assert_eq!(
                (program.config.max_epochs, program.config.seed),
                (Some(2), 3)
            );
        }
        let program = parse(&["test", "--resume", "best"]).unwrap();
        assert_eq!(
            (program.task, program.config.resume),
            (Task::Test, Some(Resume::Best))
        );
        assert!(parse(&["--seed", "1", "test"]).is_err());
        assert!(parse(&["train"]).is_err());
    }

    #[test]
    fn a_model_is_trained_and_then_tested() {
        let dir = tempfile::tempdir().unwrap();
        let run = |arguments: &[&str]| {
            let runs = dir.path().to_str().unwrap();
            let quiet = ["--progress=off", "--devices=1", "--run-dir", runs];
            let arguments: Vec<_> = arguments.iter().copied().chain(quiet).collect();
            try_launch(parse(&arguments).unwrap())
        };
        let error = run(&["validate"]).unwrap_err().to_string();
        assert!(
            error.starts_with("`resume` is not set; say which checkpoint"),
            "{error}"
        );
        let error = run(&["test", "--resume=last"]).unwrap_err().to_string();
        assert!(error.starts_with("there is no checkpoint under"), "{error}");
        run(&["fit"]).unwrap();
        run(&["validate", "--resume=last"]).unwrap();
        run(&["test", "--resume=last", "--fast-dev-run"]).unwrap();
        let error = run(&["predict", "--resume=last"]).unwrap_err().to_string();
        assert!(
            error.contains("implement `predict` of `FitLine`"),
            "{error}"
        );
        // Nothing but the fit has made a folder.
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
