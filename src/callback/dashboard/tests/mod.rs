//! What people see, and what becomes of their terminal.

mod screens;
#[allow(clippy::unwrap_used, clippy::panic, reason = "tests")]
mod terminal;

use ratatui_core::buffer::{Buffer, Cell};

/// What stands in each row.
pub(super) fn lines(buffer: &Buffer) -> Vec<String> {
    let rows = buffer.content.chunks(usize::from(buffer.area.width).max(1));
    let text = |row: &[Cell]| row.iter().map(Cell::symbol).collect();
    rows.map(text).collect()
}
