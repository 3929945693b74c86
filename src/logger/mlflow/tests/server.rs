//! A small MLflow on this machine, in this process, that fails as it is told to.

use serde_json::{Value, json};
use std::collections::{BTreeMap, VecDeque};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard};

/// What is done with a request.
pub(super) enum Act {
    /// Taken and answered.
    Answer,
    /// Not taken, and answered with this status and text.
    Refuse(u16, &'static str),
    /// Taken, and the connection is cut in the middle of the answer.
    Cut,
    /// Not taken, and the connection is cut without an answer.
    Drop,
    /// Taken; that is told, and the answer held back until the other end is heard or gone.
    Hold(Sender<()>, Receiver<()>),
}

/// A point as MLflow keeps it: name, step, value, time. As text, a NaN is equal to itself.
pub(super) type Point = (String, u64, String, u64);

/// What the server has been given.
#[derive(Default)]
pub(super) struct Store {
    pub(super) runs: Vec<Value>,
    pub(super) points: Vec<Point>,
    pub(super) params: BTreeMap<String, String>,
    pub(super) tags: BTreeMap<String, String>,
    pub(super) artifacts: BTreeMap<String, Vec<u8>>,
    pub(super) statuses: Vec<(String, Option<u64>)>,
    /// The size of each batch of metrics and parameters, with repeated ones.
    pub(super) batches: Vec<(usize, usize)>,
    pub(super) authorization: Option<String>,
    pub(super) artifact_root: Option<&'static str>,
    /// Every connection is cut at once, which is told here.
    pub(super) down: Option<Sender<()>>,
    experiments: Vec<String>,
    /// What is done with the next requests whose path holds this text.
    plan: VecDeque<(&'static str, Act)>,
}

impl Store {
    /// The steps and values of a metric, in the order in which they came.
    pub(super) fn metric(&self, name: &str) -> Vec<(u64, String)> {
        let of_name = self.points.iter().filter(|point| point.0 == name);
        of_name.map(|point| (point.1, point.2.clone())).collect()
    }
}

pub(super) struct Server {
    address: SocketAddr,
    store: Arc<Mutex<Store>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Server {
    pub(super) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let store = Arc::<Mutex<Store>>::default();
        let shared = Arc::clone(&store);
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (stream, store) = (stream.unwrap(), Arc::clone(&shared));
                // An empty request is the word to stop.
                let Some(request) = read(&stream) else {
                    return;
                };
                std::thread::spawn(move || serve(stream, request, &store));
            }
        });
        Self {
            address,
            store,
            thread: Some(thread),
        }
    }

    pub(super) fn uri(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(super) fn store(&self) -> MutexGuard<'_, Store> {
        self.store.lock().unwrap()
    }

    pub(super) fn plan(&self, path: &'static str, acts: impl IntoIterator<Item = Act>) {
        let acts = acts.into_iter().map(|act| (path, act));
        self.store().plan.extend(acts);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            drop(TcpStream::connect(self.address).unwrap());
            thread.join().unwrap();
        }
    }
}

struct Request {
    method: String,
    path: String,
    authorization: Option<String>,
    body: Vec<u8>,
}

fn read(stream: &TcpStream) -> Option<Request> {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    let mut words = line.split(' ').map(str::to_owned);
    let (method, path) = (words.next()?, words.next()?);
    let (mut length, mut authorization) = (0, None);
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        let Some((name, value)) = line.trim_end().split_once(": ") else {
            break;
        };
        match name.to_ascii_lowercase().as_str() {
            "content-length" => length = value.parse().unwrap(),
            "authorization" => authorization = Some(value.to_owned()),
            _ => {}
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    Some(Request {
        method,
        path,
        authorization,
        body,
    })
}

fn serve(mut stream: TcpStream, request: Request, store: &Mutex<Store>) {
    let act = {
        let mut store = store.lock().unwrap();
        if let Some(told) = &store.down {
            told.send(()).unwrap();
            return;
        }
        store.authorization.clone_from(&request.authorization);
        let planned = store
            .plan
            .iter()
            .position(|(path, _)| request.path.contains(path));
        planned
            .and_then(|at| store.plan.remove(at))
            .map_or(Act::Answer, |(_, act)| act)
    };
    let (status, answer) = match act {
        Act::Refuse(status, text) => (status, text.to_owned()),
        Act::Drop => return,
        _ => store.lock().unwrap().take(&request),
    };
    let mut answer = format!(
        "HTTP/1.1 {status} X\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{answer}",
        answer.len()
    );
    match act {
        Act::Cut => answer.truncate(answer.len() - 1),
        Act::Hold(taken, go) => {
            taken.send(()).unwrap();
            let _ = go.recv();
        }
        _ => {}
    }
    // The other end may be gone.
    let _ = stream.write_all(answer.as_bytes());
}

impl Store {
    /// Answers as MLflow 3 does, as far as the logger asks.
    fn take(&mut self, request: &Request) -> (u16, String) {
        let body: Value = serde_json::from_slice(&request.body).unwrap_or_default();
        let (path, query) = request.path.split_once('?').unwrap_or((&request.path, ""));
        if let Some(path) = path.strip_prefix("/api/2.0/mlflow-artifacts/artifacts/") {
            self.artifacts.insert(path.to_owned(), request.body.clone());
            return (200, String::new());
        }
        let method = path.strip_prefix("/api/2.0/mlflow/").unwrap();
        let run = body["run_id"]
            .as_str()
            .and_then(|id| id.parse::<usize>().ok());
        let answer = match (request.method.as_str(), method) {
            ("GET", "experiments/get-by-name") => {
                let name = query.strip_prefix("experiment_name=").unwrap();
                match self.experiments.iter().position(|e| e == name) {
                    Some(id) => json!({"experiment": {"experiment_id": id.to_string()}}),
                    None => return error(404, "RESOURCE_DOES_NOT_EXIST", "no such experiment"),
                }
            }
            ("POST", "experiments/create") => {
                self.experiments
                    .push(body["name"].as_str().unwrap().to_owned());
                json!({"experiment_id": (self.experiments.len() - 1).to_string()})
            }
            ("POST", "runs/search") => {
                let filter = body["filter"].as_str().unwrap();
                let mark = filter.rsplit('\'').nth(1).unwrap();
                let found = self
                    .runs
                    .iter()
                    .position(|run| run["tags"].to_string().contains(mark));
                match found {
                    Some(id) => json!({"runs": [{"info": self.info(id)}]}),
                    None => json!({}),
                }
            }
            ("POST", "runs/create") => {
                self.runs.push(body);
                json!({"run": {"info": self.info(self.runs.len() - 1)}})
            }
            ("GET", "runs/get") => {
                let params: Vec<_> = self
                    .params
                    .iter()
                    .map(|(key, value)| json!({"key": key, "value": value}))
                    .collect();
                json!({"run": {"data": {"params": params}}})
            }
            _ if run.is_none_or(|run| run >= self.runs.len()) => {
                return error(404, "RESOURCE_DOES_NOT_EXIST", "no such run");
            }
            ("POST", "runs/log-batch") => {
                let list = |name: &str| body[name].as_array().cloned().unwrap_or_default();
                let (metrics, params) = (list("metrics"), list("params"));
                self.batches.push((metrics.len(), params.len()));
                for metric in metrics {
                    let number = |name: &str| metric[name].as_u64().unwrap();
                    let name = metric["key"].as_str().unwrap().to_owned();
                    let value = metric["value"].to_string();
                    let point = (name, number("step"), value, number("timestamp"));
                    if !self.points.contains(&point) {
                        self.points.push(point);
                    }
                }
                for (key, value) in params.iter().map(pair) {
                    let earlier = self.params.insert(key, value.clone());
                    assert!(
                        earlier.is_none_or(|earlier| earlier == value),
                        "a changed parameter"
                    );
                }
                self.tags.extend(list("tags").iter().map(pair));
                json!({})
            }
            ("POST", "runs/set-tag") => {
                self.tags.extend([pair(&body)]);
                json!({})
            }
            ("POST", "runs/update") => {
                let status = body["status"].as_str().unwrap().to_owned();
                self.statuses.push((status, body["end_time"].as_u64()));
                json!({})
            }
            other => return error(404, "ENDPOINT_NOT_FOUND", &format!("{other:?}")),
        };
        (200, answer.to_string())
    }

    fn info(&self, id: usize) -> Value {
        let root = self.artifact_root.unwrap_or("mlflow-artifacts:/0");
        json!({"run_id": id.to_string(), "artifact_uri": format!("{root}/{id}/artifacts")})
    }
}

fn pair(value: &Value) -> (String, String) {
    let text = |name: &str| value[name].as_str().unwrap().to_owned();
    (text("key"), text("value"))
}

fn error(status: u16, code: &str, message: &str) -> (u16, String) {
    (
        status,
        json!({"error_code": code, "message": message}).to_string(),
    )
}
