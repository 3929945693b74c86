//! Predictions of a model that makes none.

use firebox::prelude::*;
use firebox::testing::{AutodiffBackend, Line, line_data};

fn run<B: AutodiffBackend>(cx: Launch<B>) -> Result<()> {
    let model = Line::<B>::new(cx.device());
    let outputs: Vec<f32> = cx.trainer().predict(&model, &line_data())?;
    Ok(())
}

fn main() {}
