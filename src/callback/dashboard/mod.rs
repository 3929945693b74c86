//! A dashboard on the whole terminal: how far the run is, its metrics and their curves.

mod callback;
mod chart;
mod keys;
mod model;
mod output;
mod screen;
#[cfg(test)]
mod tests;
mod tty;
mod view;

pub use callback::Dashboard;
use model::{Device, Model};
use screen::Screen;
