//! Something else is given as data.

use firebox::prelude::*;
use firebox::testing::{AutodiffBackend, Line, line_data};

struct Points;

fn run<B: AutodiffBackend>(cx: Launch<B>) -> Result<()> {
    let model = Line::<B>::new(cx.device());
    cx.trainer().fit(model, &mut Points)?;

    // A loader alone is not the data of a run; `Loaders` is.
    let model = Line::<B>::new(cx.device());
    cx.trainer().fit(model, &mut line_data())?;
    Ok(())
}

fn main() {}
