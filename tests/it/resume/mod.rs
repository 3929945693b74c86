//! A run that is stopped and resumed is the run that was never stopped.

mod choices;
mod equivalence;
mod kept;
mod trials;
