//! Settings, texts, images and histograms.

use super::*;
use crate::config::TrainerConfig;
use crate::logger::{Channels, Histogram, Image, Media};
use serde_json::json;

#[test]
fn settings_are_parameters_and_files() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start();
    server.plan("log-batch", [Act::Cut]);
    let (logger, says) = logger(&server.uri(), dir.path());
    let mut logger = logger
        .experiment("e")
        .run_name("r")
        .tag("k", "v")
        .tag("k", "w");
    let config = |seed| TrainerConfig::new().with_seed(seed);
    let settings: toml::Table = config(1).to_toml().unwrap().parse().unwrap();
    logger.log_config(&config(1)).unwrap();
    let many = (0..150).map(|i| (format!("h{i:03}"), json!(i)));
    let mut hyper_parameters: serde_json::Map<String, serde_json::Value> = many.collect();
    hyper_parameters.insert("lr".to_owned(), json!(3));
    hyper_parameters.insert("net".to_owned(), json!({"name": "wide"}));
    logger
        .log_hyper_parameters(&hyper_parameters.into())
        .unwrap();
    log_losses(&mut logger, 1..=1);
    finish(&mut logger);
    // A second fit goes on in the same run; only what has changed is told.
    logger.log_config(&config(1)).unwrap();
    logger.log_config(&config(2)).unwrap();
    log_losses(&mut logger, 2..=2);
    finish(&mut logger);

    let store = server.store();
    let run = &store.runs[0];
    assert_eq!(
        (&run["run_name"], &run["experiment_id"]),
        (&json!("r"), &json!("0"))
    );
    assert_eq!(run["tags"][0], json!({"key": "k", "value": "w"}));
    let params: Vec<_> = store.batches.iter().map(|batch| batch.1).collect();
    // What was taken although its answer was cut is found there.
    assert_eq!(params, [settings.len(), 100, 52, 0, 0, 0]);
    assert_eq!(store.params.len(), settings.len() + 152);
    assert_eq!(store.params["trainer.seed"], "1");
    assert_eq!(
        (&*store.params["lr"], &*store.params["net.name"]),
        ("3", "wide")
    );
    assert_eq!(store.tags["firebox.changed.trainer.seed"], "2");
    let root = "0/0/artifacts";
    let files = ["config-v1.toml", "config.toml", "hyper_parameters.json"];
    let files = files.map(|name| format!("{root}/{name}"));
    assert_eq!(
        store.artifacts.keys().collect::<Vec<_>>(),
        files.iter().collect::<Vec<_>>()
    );
    assert_eq!(
        store.artifacts[&files[1]],
        config(1).to_toml().unwrap().as_bytes()
    );
    let statuses: Vec<_> = store.statuses.iter().map(|status| &*status.0).collect();
    assert_eq!(statuses, ["FINISHED", "RUNNING", "FINISHED"]);
    let said: Vec<_> = says.try_iter().collect();
    assert_eq!(said.len(), 1);
    assert!(
        said[0].starts_with("note: `trainer.seed` is 2, and was 1"),
        "{}",
        said[0]
    );
}

#[test]
fn texts_images_and_histograms_are_artifacts() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start();
    server.plan("mlflow-artifacts", [Act::Cut]);
    let (mut logger, _says) = logger(&server.uri(), dir.path());
    let image = Image {
        width: 1,
        height: 2,
        channels: Channels::Gray,
        pixels: vec![0, 255],
    };
    let histogram = Histogram {
        min: 0.5,
        max: f64::INFINITY,
        count: 3,
        sum: f64::NAN,
        sum_of_squares: 2.0,
        non_finite: 0,
        buckets: vec![(1.0, 2.0), (f64::INFINITY, 1.0)],
    };
    let media = [
        (Media::Text("größer".to_owned()), "a b/ü"),
        (Media::Image(image.clone()), "im"),
        (Media::Histogram(histogram), "grad"),
    ];
    for (media, name) in &media {
        logger.log_media(7, name, media).unwrap();
    }
    let broken = Media::Image(Image { height: 3, ..image });
    let error = logger.log_media(8, "im", &broken).unwrap_err().to_string();
    assert!(
        error.starts_with("`im` at step 8: an image of 1 x 3 pixels"),
        "{error}"
    );
    finish(&mut logger);
    let store = server.store();
    let file = |name: &str| &*store.artifacts[&format!("0/0/artifacts/{name}")];
    assert_eq!(file("a%20b/%C3%BC/step-7.txt"), "größer".as_bytes());
    assert!(file("im/step-7.png").starts_with(b"\x89PNG\r\n\x1a\n"));
    let expected =
        r#"{"min":0.5,"max":"inf","count":3,"sum":"NaN","sum_of_squares":2.0,"non_finite":0,"#;
    let expected = format!(r#"{expected}"buckets":[[1.0,2.0],["inf",1.0]]}}"#);
    assert_eq!(file("grad/step-7.json"), expected.as_bytes());
    assert_eq!(store.artifacts.len(), 3);
}

#[test]
fn artifacts_that_are_kept_elsewhere_are_left_out_with_a_warning() {
    for (root, no_proxy) in [(Some("s3://bucket"), false), (None, true)] {
        let dir = tempfile::tempdir().unwrap();
        let server = Server::start();
        server.store().artifact_root = root;
        if no_proxy {
            let why = "disabled due to the mlflow server running with `--no-serve-artifacts`";
            server.plan(
                "mlflow-artifacts",
                [Act::Refuse(503, why), Act::Refuse(503, why)],
            );
        }
        let (mut logger, says) = logger(&server.uri(), dir.path());
        for step in 1..=2 {
            logger
                .log_media(step, "t", &Media::Text("x".to_owned()))
                .unwrap();
        }
        log_losses(&mut logger, 3..=3);
        finish(&mut logger);
        assert_eq!(server.store().artifacts.len(), 0);
        assert_eq!(server.store().metric("loss"), losses(3..=3));
        let said: Vec<_> = says.try_iter().collect();
        assert_eq!(said.len(), 1, "{said:?}");
        assert!(said[0].contains("--serve-artifacts"), "{}", said[0]);
    }
}
