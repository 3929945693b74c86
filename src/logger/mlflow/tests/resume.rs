//! Runs that go on from a checkpoint.

use super::*;
use crate::logger::Media;

/// A run that logs `loss` at steps 1 to `last`, with a checkpoint after `at`, and is then killed.
fn killed(server: &Server, folder: &Path, at: u64, last: u64) -> Value {
    let (mut logger, _says) = logger(&server.uri(), folder);
    log_losses(&mut logger, 1..=at);
    logger.sender.as_ref().unwrap().finish(LONG);
    let state = logger.save_state();
    log_losses(&mut logger, at + 1..=last);
    // All is sent, but the run has no end.
    logger.sender.as_ref().unwrap().finish(LONG);
    state
}

fn resumed(server: &Server, folder: &Path, state: &Value) -> (MlflowLogger, Receiver<String>) {
    let (mut logger, says) = logger(&server.uri(), folder);
    logger.load_state(state).unwrap();
    (logger, says)
}

/// The steps in a spool, in order.
fn spooled(folder: &Path) -> Vec<u64> {
    let path = folder.join("mlflow.spool.jsonl");
    let length = spool_length(folder);
    let lines = spool::Lines::read(&path, 0, length).unwrap();
    lines
        .filter_map(|line| match line.unwrap().0 {
            spool::Entry::Row(points) => Some(points.step),
            _ => None,
        })
        .collect()
}

#[test]
fn a_resumed_run_goes_on_as_the_same_with_every_point_once() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start();
    let state = killed(&server, dir.path(), 3, 6);
    let before = server.store().points.clone();
    assert_eq!(before.len(), 6);
    let (mut logger, says) = resumed(&server, dir.path(), &state);
    assert_eq!(spooled(dir.path()), [1, 2, 3]);
    log_losses(&mut logger, 4..=8);
    finish(&mut logger);
    let store = server.store();
    assert_eq!(store.runs.len(), 1);
    assert_eq!(store.metric("loss"), losses(1..=8));
    // The repeated points are the same points, with their time.
    assert_eq!(store.points[..6], before);
    assert_eq!(spooled(dir.path()), [1, 2, 3, 4, 5, 6, 7, 8]);
    let statuses: Vec<_> = store.statuses.iter().map(|status| &*status.0).collect();
    assert_eq!(statuses, ["RUNNING", "FINISHED"]);
    let sent: usize = store.batches.iter().map(|batch| batch.0).sum();
    assert_eq!(sent, 8, "what is known there is not sent again");
    assert_eq!(says.try_iter().count(), 0);
}

#[test]
fn a_checkpoint_within_the_repeated_part_is_good_as_well() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start();
    let state = killed(&server, dir.path(), 2, 9);
    let (mut logger, _says) = resumed(&server, dir.path(), &state);
    log_losses(&mut logger, 3..=5);
    let state = logger.save_state();
    drop(logger);
    let (mut logger, says) = resumed(&server, dir.path(), &state);
    log_losses(&mut logger, 6..=10);
    finish(&mut logger);
    assert_eq!(server.store().metric("loss"), losses(1..=10));
    assert_eq!(server.store().points.len(), 10);
    assert_eq!(spooled(dir.path()), (1..=10).collect::<Vec<_>>());
    assert_eq!(says.try_iter().count(), 0);
}

#[test]
fn what_was_never_sent_is_dropped_and_comes_again() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start();
    let (mut logger, _says) = logger(&server.uri(), dir.path());
    log_losses(&mut logger, 1..=2);
    logger.sender.as_ref().unwrap().finish(LONG);
    let ((taken, is_taken), (go, wait)) = (channel(), channel::<()>());
    let ((taken2, is_taken2), (go2, wait2)) = (channel(), channel::<()>());
    server.plan(
        "log-batch",
        [Act::Hold(taken, wait), Act::Hold(taken2, wait2)],
    );
    log_losses(&mut logger, 3..=3);
    is_taken.recv().unwrap();
    let state = logger.save_state();
    log_losses(&mut logger, 4..=4);
    let text = Media::Text("x".to_owned());
    logger.log_media(4, "t", &text).unwrap();
    log(&mut logger, 5, &[("loss", 77.0)]);
    drop(go);
    // Step 4 arrives, but this machine does not come to know it; step 5 is never sent.
    is_taken2.recv().unwrap();
    let sender = logger.sender.take().unwrap();
    sender.stop();
    drop(go2);
    sender.join().unwrap();
    let sent = dir.path().join("mlflow.sent");
    let mut position = sent_file(dir.path());
    position["confirmed"] = state["length"].clone();
    std::fs::write(&sent, position.to_string()).unwrap();
    drop(logger);

    let (mut logger, says) = resumed(&server, dir.path(), &state);
    log_losses(&mut logger, 4..=6);
    finish(&mut logger);
    // 77 at step 5 has never left this machine, and the run has not kept it.
    assert_eq!(server.store().metric("loss"), losses(1..=6));
    assert_eq!(says.try_iter().count(), 0);
}

#[test]
fn other_values_in_the_repeated_part_are_added_and_told_once() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start();
    let state = killed(&server, dir.path(), 1, 4);
    let (mut logger, says) = resumed(&server, dir.path(), &state);
    log(&mut logger, 2, &[("loss", 0.5), ("new", 1.0)]);
    log(&mut logger, 3, &[("loss", 7.0)]);
    log(&mut logger, 4, &[("loss", 8.0)]);
    finish(&mut logger);
    let store = server.store();
    let mut expected = losses(1..=4);
    expected.extend([(3, "7.0".to_owned()), (4, "8.0".to_owned())]);
    assert_eq!(store.metric("loss"), expected);
    assert_eq!(store.metric("new"), [(2, "1.0".to_owned())]);
    let time = |at: usize| store.points[at].3;
    assert!(time(5) >= time(3));
    let said: Vec<_> = says.try_iter().collect();
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(said[0].contains("`loss` at step 3"), "{}", said[0]);
}

#[test]
fn in_another_folder_the_run_is_a_new_one() {
    let (old, new) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let server = Server::start();
    let mut state = killed(&server, old.path(), 2, 2);
    assert_eq!(state["run_id"], "0");
    let (mut logger, _says) = resumed(&server, new.path(), &state);
    log_losses(&mut logger, 3..=4);
    finish(&mut logger);
    let from = |run: usize| server.store().runs[run]["tags"].clone();
    assert_eq!(
        from(1)[0],
        serde_json::json!({"key": "firebox.resumed_from", "value": "0"})
    );
    // A spool that is there, of another run, is kept; and a state leads nowhere else.
    state["id"] = "other".into();
    for spool in ["mlflow.spool.jsonl", "../mlflow.spool.jsonl", "/etc/passwd"] {
        state["spool"] = spool.into();
        let (mut logger, _says) = resumed(&server, new.path(), &state);
        log_losses(&mut logger, 1..=1);
        finish(&mut logger);
    }
    assert_eq!(spooled(new.path()), [3, 4]);
    assert!(new.path().join("mlflow-v3.spool.jsonl").exists());
    assert_eq!(server.store().runs.len(), 5);
    assert_eq!(send_rest(new.path()).unwrap().run_ids, ["1", "2", "3", "4"]);
}

#[test]
fn a_spool_that_lost_its_end_is_gone_on_with() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start();
    let state = killed(&server, dir.path(), 4, 4);
    let path = dir.path().join("mlflow.spool.jsonl");
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    // In the middle of the third row's line.
    let text = std::fs::read_to_string(&path).unwrap();
    let third = text
        .lines()
        .take(4)
        .map(|line| line.len() + 1)
        .sum::<usize>()
        - 5;
    file.set_len(third as u64).unwrap();
    let (mut logger, says) = resumed(&server, dir.path(), &state);
    let said = says.try_recv().unwrap();
    assert!(said.contains("has lost its end"), "{said}");
    log_losses(&mut logger, 5..=6);
    finish(&mut logger);
    assert_eq!(spooled(dir.path()), [1, 2, 5, 6]);
    assert_eq!(server.store().metric("loss"), losses(1..=6));
}

#[test]
fn a_state_of_something_else_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (mut logger, _says) = logger("http://127.0.0.1:9", dir.path());
    let error = logger
        .load_state(&serde_json::json!({"rows": 3}))
        .unwrap_err();
    assert!(
        error
            .to_string()
            .contains("the state of MlflowLogger cannot be read"),
        "{error}"
    );
}
