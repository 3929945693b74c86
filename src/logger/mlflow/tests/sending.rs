//! What the server gets, whatever it does.

use super::*;

#[test]
fn every_point_arrives_once_and_in_order_whatever_fails() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start();
    server.plan("get-by-name", [Act::Cut]);
    server.plan("runs/create", [Act::Cut, Act::Drop]);
    let busy = [429, 500, 503].map(|status| Act::Refuse(status, "busy"));
    server.plan("log-batch", busy);
    server.plan(
        "log-batch",
        [Act::Cut, Act::Drop, Act::Cut, Act::Refuse(200, "<html>")],
    );
    server.plan("log-batch", [Act::Answer, Act::Cut, Act::Cut]);
    let (mut logger, says) = logger(&server.uri(), dir.path());
    log_losses(&mut logger, 1..=500);
    log(
        &mut logger,
        501,
        &[
            ("odd", f64::NAN),
            ("odd2", f64::INFINITY),
            ("odd3", f64::NEG_INFINITY),
        ],
    );
    log(&mut logger, 502, &[("acc@5", 0.1 + 0.2), ("acc@5/", -0.0)]);
    finish(&mut logger);

    let store = server.store();
    assert_eq!(store.runs.len(), 1);
    assert_eq!(store.metric("loss"), losses(1..=500));
    assert_eq!(store.metric("odd"), [(501, "\"NaN\"".to_owned())]);
    assert_eq!(store.metric("odd2"), [(501, "\"Infinity\"".to_owned())]);
    assert_eq!(store.metric("odd3"), [(501, "\"-Infinity\"".to_owned())]);
    assert_eq!(
        store.metric("acc_x40_5"),
        [(502, "0.30000000000000004".to_owned())]
    );
    assert_eq!(store.metric("acc_x40_5/_"), [(502, "-0.0".to_owned())]);
    assert_eq!(store.points.len(), 505);
    let times: Vec<_> = store.points.iter().map(|point| point.3).collect();
    assert!(times.is_sorted());
    let last = store.statuses.last().unwrap();
    assert_eq!(last.0, "FINISHED");
    assert!(last.1.unwrap() >= times[0]);
    assert_eq!(sent_file(dir.path())["confirmed"], spool_length(dir.path()));
    let renamed = says
        .try_iter()
        .filter(|line| line.starts_with("note: MLflow does not take"));
    assert_eq!(renamed.count(), 2);
}

#[test]
fn training_does_not_wait_for_an_answer() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start();
    let ((taken, is_taken), (go, wait)) = (channel(), channel());
    server.plan("log-batch", [Act::Hold(taken, wait)]);
    let (mut logger, _says) = logger(&server.uri(), dir.path());
    log_losses(&mut logger, 1..=1);
    is_taken.recv().unwrap();
    // The answer to the first row is held back all the while.
    log_losses(&mut logger, 2..=3000);
    let state = logger.save_state();
    assert_eq!(state["length"], spool_length(dir.path()));
    assert!(sent_file(dir.path())["confirmed"].as_u64() < state["length"].as_u64());
    assert_eq!(server.store().metric("loss"), losses(1..=1));
    go.send(()).unwrap();
    finish(&mut logger);
    let store = server.store();
    assert_eq!(store.metric("loss"), losses(1..=3000));
    assert_eq!(store.batches, [(1, 0), (1000, 0), (1000, 0), (999, 0)]);
}

#[test]
fn a_server_that_goes_away_is_told_once_and_gets_the_rest_when_it_is_back() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start();
    let ((taken, is_taken), (go, wait)) = (channel(), channel());
    server.plan("log-batch", [Act::Hold(taken, wait)]);
    let (mut logger, says) = logger(&server.uri(), dir.path());
    log_losses(&mut logger, 1..=1);
    is_taken.recv().unwrap();
    let (down, is_cut) = channel();
    server.store().down = Some(down);
    go.send(()).unwrap();
    log_losses(&mut logger, 2..=100);
    let warning = says.recv().unwrap();
    assert!(
        warning.starts_with("warning: MLflow at http://127.0.0.1:"),
        "{warning}"
    );
    assert!(warning.contains("mlflow.spool.jsonl"), "{warning}");
    log_losses(&mut logger, 101..=200);
    assert_eq!(is_cut.iter().take(6).count(), 6);
    server.store().down = None;
    let back = says.recv().unwrap();
    assert!(back.ends_with("answers again"), "{back}");
    finish(&mut logger);
    assert_eq!(server.store().metric("loss"), losses(1..=200));
    assert_eq!(says.try_iter().count(), 0);
}

#[test]
fn what_is_not_sent_in_time_is_sent_later() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start();
    let ((taken, is_taken), (go, wait)) = (channel(), channel::<()>());
    server.plan("log-batch", [Act::Hold(taken, wait)]);
    let (logger, says) = logger(&server.uri(), dir.path());
    let mut logger = logger.patience(Duration::ZERO);
    log_losses(&mut logger, 1..=1);
    is_taken.recv().unwrap();
    log_losses(&mut logger, 2..=5);
    finish(&mut logger);
    let said = says.recv().unwrap();
    assert!(
        said.contains("has not taken everything within 0ns"),
        "{said}"
    );
    let command = format!("`firebox mlflow-send {}`", dir.path().display());
    assert!(said.contains(&command), "{said}");
    // As long as the request is under way, nobody else sends.
    let error = send_rest(dir.path()).unwrap_err().to_string();
    assert!(
        error.contains("is in use by a run that is going on"),
        "{error}"
    );
    let ended = logger.sender.take().unwrap();
    ended.stop();
    drop(go);
    ended.join().unwrap();
    drop(logger);
    assert_eq!(server.store().metric("loss"), losses(1..=1));

    let sent = send_rest(dir.path()).unwrap();
    assert_eq!((sent.points, sent.run_ids), (4, vec!["0".to_owned()]));
    assert_eq!(server.store().metric("loss"), losses(1..=5));
    assert_eq!(server.store().statuses.last().unwrap().0, "FINISHED");
    assert_eq!(send_rest(dir.path()).unwrap().points, 0);
    assert_eq!(server.store().batches, [(1, 0), (4, 0)]);
}

#[test]
fn a_crash_before_the_position_is_written_repeats_nothing_in_mlflow() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start();
    let (mut logger, _says) = logger(&server.uri(), dir.path());
    log_losses(&mut logger, 1..=5);
    finish(&mut logger);
    let sent = dir.path().join("mlflow.sent");
    // The server has everything, and this machine knows of nothing, not even of the run.
    std::fs::write(&sent, r#"{"confirmed":0,"tried":9999,"run":null}"#).unwrap();
    assert_eq!(send_rest(dir.path()).unwrap().points, 5);
    std::fs::remove_file(&sent).unwrap();
    assert_eq!(send_rest(dir.path()).unwrap().points, 5);
    let store = server.store();
    assert_eq!(store.metric("loss"), losses(1..=5));
    assert_eq!(store.runs.len(), 1);
    drop(store);
    std::fs::write(&sent, "").unwrap();
    let error = send_rest(dir.path()).unwrap_err();
    assert_eq!(error.kind(), crate::error::ErrorKind::Corrupt);
    assert!(
        error.to_string().contains("remove it, and all of"),
        "{error}"
    );
}

#[test]
fn what_the_server_refuses_is_an_error_and_stays_in_the_spool() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start();
    let message = r#"{"error_code": "INVALID_PARAMETER_VALUE", "message": "no such thing"}"#;
    server.plan("log-batch", [Act::Refuse(400, message)]);
    let (mut logger, _says) = logger(&server.uri(), dir.path());
    let error =
        (1..).find_map(|step| try_log(&mut logger, step, &[("loss", 1.0 / step as f64)]).err());
    let error = error.unwrap();
    let text = error.to_string();
    assert!(
        text.contains("(400): no such thing; the rest stays in `"),
        "{text}"
    );
    assert!(text.contains("firebox mlflow-send"), "{text}");
    // It is reported once; what the end of the run adds is kept as well.
    let rows = spool_length(dir.path());
    logger.finish(&RunEnd::Failed(&error)).unwrap();
    assert!(spool_length(dir.path()) > rows);
    assert_eq!(server.store().points, []);

    let sent = send_rest(dir.path()).unwrap();
    let store = server.store();
    assert_eq!(store.metric("loss"), losses(1..=sent.points));
    assert_eq!(store.tags["firebox.error"], text);
    assert_eq!(store.statuses.last().unwrap().0, "FAILED");
}

#[test]
fn a_refusal_that_comes_at_the_end_is_an_error_of_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start();
    let message = r#"{"error_code": "INVALID_STATE", "message": "it is over"}"#;
    server.plan("runs/update", [Act::Refuse(400, message)]);
    let (mut logger, _says) = logger(&server.uri(), dir.path());
    log_losses(&mut logger, 1..=1);
    let error = logger.finish(&RunEnd::Interrupted).unwrap_err().to_string();
    assert!(error.contains("(400): it is over"), "{error}");
    send_rest(dir.path()).unwrap();
    assert_eq!(server.store().statuses.last().unwrap().0, "KILLED");
}

#[test]
fn a_token_that_runs_out_ends_no_training() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start();
    // And what a proxy answers while the server starts again.
    let acts = [
        Act::Answer,
        Act::Refuse(401, "expired"),
        Act::Refuse(404, "<html>"),
    ];
    server.plan("log-batch", acts);
    let (mut logger, _says) = logger(&server.uri(), dir.path());
    log_losses(&mut logger, 1..=50);
    finish(&mut logger);
    assert_eq!(server.store().metric("loss"), losses(1..=50));
}

#[test]
fn a_row_may_have_more_values_than_a_request() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start();
    server.plan("log-batch", [Act::Answer, Act::Cut]);
    let (mut logger, _says) = logger(&server.uri(), dir.path());
    let names: Vec<_> = (0..2500).map(|i| format!("m{i}")).collect();
    let values: Vec<_> = names.iter().map(|name| (name.as_str(), 1.0)).collect();
    log(&mut logger, 1, &values);
    finish(&mut logger);
    let store = server.store();
    assert_eq!(store.points.len(), 2500);
    let sizes: Vec<_> = store.batches.iter().map(|batch| batch.0).collect();
    assert_eq!(sizes, [1000, 1000, 1000, 1000, 500]);
}

#[test]
fn credentials_go_with_every_request() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start();
    let token = |name: &str| (name == "MLFLOW_TRACKING_TOKEN").then(|| "abc".to_owned());
    let folder = dir.path().to_owned();
    let mut logger = MlflowLogger::with_variables(&server.uri(), folder, &token).unwrap();
    log_losses(&mut logger, 1..=1);
    finish(&mut logger);
    assert_eq!(server.store().authorization.as_deref(), Some("Bearer abc"));
    let spool = std::fs::read_to_string(dir.path().join("mlflow.spool.jsonl")).unwrap();
    assert!(!spool.contains("abc"));
}
