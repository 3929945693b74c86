//! Something else is added as a callback.

use firebox::prelude::*;
use firebox::testing::{AutodiffBackend, Line};

struct StopAtNoon;

fn run<B: AutodiffBackend>(cx: Launch<B>) -> Trainer<Line<B>> {
    cx.trainer().with_callback(StopAtNoon)
}

fn main() {}
