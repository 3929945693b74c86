//! What each entry of a spool is to the server.

use super::super::client::Failure;
use super::super::names::{key, tag_value};
use super::super::spool::{Begin, Content, Entry, RunInfo};
use super::Delivery;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

/// MLflow's limit for one request.
const PARAMS_LIMIT: usize = 100;

impl Delivery {
    /// Sends an entry.
    pub(super) fn send(&mut self, entry: &Entry) -> Result<(), Failure> {
        match entry {
            Entry::Run(begin) if self.position.run.is_none() => {
                self.position.run = Some(self.begin(begin)?);
                Ok(())
            }
            Entry::Run(_) => Ok(()),
            Entry::Settings { path, text, params } => {
                self.send_params(params)?;
                self.send_artifact(path, text.as_bytes())
            }
            // Rows go in batches.
            Entry::Row(points) => self.send_rows(std::slice::from_ref(points)),
            Entry::Media { path, content } => match content {
                Content::Text(text) => self.send_artifact(path, text.as_bytes()),
                Content::Base64(text) => {
                    let bytes = STANDARD.decode(text);
                    let bytes = bytes.map_err(|e| self.damaged(&format!("`{path}`: {e}")))?;
                    self.send_artifact(path, &bytes)
                }
            },
            Entry::Tag(key, value) => {
                let run_id = self.run()?.run_id;
                let body = json!({"run_id": run_id, "key": key, "value": value});
                self.client.post("runs/set-tag", &body).map(drop)
            }
            Entry::Status { status, end } => {
                let mut body = json!({"run_id": self.run()?.run_id, "status": status});
                if let Some(end) = end {
                    body["end_time"] = json!(end);
                }
                self.client.post("runs/update", &body).map(drop)
            }
        }
    }

    /// Finds or makes the run and its experiment.
    fn begin(&self, begin: &Begin) -> Result<RunInfo, Failure> {
        let experiment = self.experiment(&begin.experiment)?;
        let mark = ("firebox.spool".to_owned(), begin.id.clone());
        // The run is there already if the answer to an earlier request was lost.
        let search = json!({
            "experiment_ids": [experiment],
            "filter": format!("tags.`{}` = '{}'", mark.0, mark.1),
            "max_results": 1,
        });
        let found = self.client.post("runs/search", &search)?;
        if let Some(info) = found.pointer("/runs/0/info") {
            return run_info(info);
        }
        let tags: Vec<_> = begin
            .tags
            .iter()
            .chain([&mark])
            .map(|(key, value)| json!({"key": key, "value": value}))
            .collect();
        let mut body = json!({"experiment_id": experiment, "start_time": begin.time, "tags": tags});
        if let Some(name) = &begin.run_name {
            body["run_name"] = json!(name);
        }
        let made = self.client.post("runs/create", &body)?;
        run_info(made.pointer("/run/info").unwrap_or(&Value::Null))
    }

    fn experiment(&self, name: &str) -> Result<String, Failure> {
        let find = || {
            let found = self
                .client
                .get("experiments/get-by-name", ("experiment_name", name))?;
            text_at(&found, "/experiment/experiment_id")
        };
        match find() {
            Err(Failure::Refused {
                status: 404, code, ..
            }) if code == "RESOURCE_DOES_NOT_EXIST" => {}
            found => return found,
        }
        match self
            .client
            .post("experiments/create", &json!({"name": name}))
        {
            // Another run was faster.
            Err(Failure::Refused { code, .. }) if code == "RESOURCE_ALREADY_EXISTS" => find(),
            made => text_at(&made?, "/experiment_id"),
        }
    }

    /// MLflow takes a parameter once. One that has another value since, as the run goes on with
    /// other settings, is kept as a tag.
    fn send_params(&self, params: &[(String, String)]) -> Result<(), Failure> {
        if params.is_empty() {
            return Ok(());
        }
        let run_id = self.run()?.run_id;
        let found = self.client.get("runs/get", ("run_id", &run_id))?;
        let there = found.pointer("/run/data/params").and_then(Value::as_array);
        let there: Vec<_> = there
            .into_iter()
            .flatten()
            .filter_map(|param| Some((param.get("key")?.as_str()?, param.get("value")?.as_str()?)))
            .collect();
        let mut new: Vec<(&str, &str)> = Vec::new();
        let (mut tags, mut notes) = (Vec::new(), Vec::new());
        for (name, value) in params {
            let earlier = there.iter().chain(&new).find(|(n, _)| n == name);
            match earlier {
                None => new.push((name, value)),
                Some((_, same)) if same == value => {}
                Some((_, earlier)) => {
                    let tag = format!("firebox.changed.{name}");
                    tags.push(json!({"key": key(&tag), "value": tag_value(value)}));
                    notes.push(format!(
                        "note: `{name}` is {value}, and was {earlier} when the run began; MLflow \
                         keeps that, and has the new value in the tag `{tag}`"
                    ));
                }
            }
        }
        let pair = |(key, value): &(&str, &str)| json!({"key": key, "value": value});
        let new: Vec<Value> = new.iter().map(pair).collect();
        let params = new.chunks(PARAMS_LIMIT).map(|part| ("params", part));
        for (kind, part) in params.chain(tags.chunks(PARAMS_LIMIT).map(|part| ("tags", part))) {
            let body = json!({"run_id": run_id, kind: part});
            self.client.post("runs/log-batch", &body)?;
        }
        notes.iter().for_each(|note| (self.report)(note));
        Ok(())
    }

    fn send_artifact(&mut self, path: &str, content: &[u8]) -> Result<(), Failure> {
        let root = self.run()?.artifact_uri;
        // With a host in it (`mlflow-artifacts://host/`), it is another server's.
        let served = root
            .strip_prefix("mlflow-artifacts:/")
            .filter(|rest| !rest.starts_with('/'));
        let Some(served) = served else {
            self.leave_out(&format!("at `{root}`, not with the server"));
            return Ok(());
        };
        let path = format!("{}/{path}", served.trim_end_matches('/'));
        match self.client.put_artifact(&path, content) {
            Err(Failure::Away(why)) if why.contains("--no-serve-artifacts") => {
                self.leave_out("where its server does not pass them on");
                Ok(())
            }
            Err(failure) => Err(failure),
            Ok(()) => {
                self.files += 1;
                Ok(())
            }
        }
    }

    fn leave_out(&mut self, place: &str) {
        if !std::mem::replace(&mut self.told, true) {
            (self.report)(&format!(
                "warning: MLflow keeps this run's artifacts {place}; settings files, texts, images \
                 and histograms stay in `{}`; `mlflow server --serve-artifacts`, without \
                 `--default-artifact-root`, takes them",
                self.spool.display()
            ));
        }
    }
}

fn run_info(info: &Value) -> Result<RunInfo, Failure> {
    Ok(RunInfo {
        run_id: text_at(info, "/run_id")?,
        artifact_uri: text_at(info, "/artifact_uri").unwrap_or_default(),
    })
}

fn text_at(answer: &Value, place: &str) -> Result<String, Failure> {
    let text = answer.pointer(place).and_then(Value::as_str);
    let other = || {
        Failure::Away(format!(
            "its answer is not MLflow's, as `{place}` is missing"
        ))
    };
    text.map(str::to_owned).ok_or_else(other)
}
