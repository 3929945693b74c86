//! What a run shows of itself, what it is told while it goes on, and what changes on the way.

mod callbacks;
mod loggers;
mod orders;
mod outputs;
mod profile;
