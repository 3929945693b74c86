//! Writes frames to the terminal, each as a whole.

use super::tty::Tty;
use ratatui_core::backend::{Backend, ClearType, WindowSize};
use ratatui_core::buffer::Cell;
use ratatui_core::layout::{Position, Size};
use ratatui_core::style::{Color, Modifier};
use std::fmt::Write;
use std::io;
use std::sync::Arc;

/// A backend that collects a frame and writes it at once.
///
/// Control sequences as in ECMA-48 and <https://invisible-island.net/xterm/ctlseqs/ctlseqs.html>.
#[derive(Debug)]
pub(super) struct Output {
    tty: Arc<Tty>,
    frame: String,
    has_color: bool,
}

impl Output {
    /// Without colours if `NO_COLOR` is set, <https://no-color.org>.
    pub(super) fn new(tty: Arc<Tty>) -> Self {
        let no_color = std::env::var_os("NO_COLOR").is_some_and(|v| !v.is_empty());
        Self {
            tty,
            frame: String::new(),
            has_color: !no_color,
        }
    }

    fn write(&mut self, text: std::fmt::Arguments<'_>) -> io::Result<()> {
        self.frame.write_fmt(text).map_err(io::Error::other)
    }
}

impl Backend for Output {
    type Error = io::Error;

    fn draw<'a, I>(&mut self, content: I) -> io::Result<()>
    where
        I: Iterator<Item = (u16, u16, &'a Cell)>,
    {
        let mut at = None;
        let mut style = None;
        for (x, y, cell) in content {
            if at != Some((x, y)) {
                self.write(format_args!("\x1b[{};{}H", y + 1, x + 1))?;
            }
            at = Some((x + 1, y));
            if style != Some((cell.fg, cell.modifier)) {
                style = Some((cell.fg, cell.modifier));
                self.frame.push_str("\x1b[0");
                if self.has_color {
                    self.frame.push_str(color(cell.fg));
                }
                for (modifier, code) in MODIFIERS {
                    if cell.modifier.contains(modifier) {
                        self.frame.push_str(code);
                    }
                }
                self.frame.push('m');
            }
            self.frame.push_str(cell.symbol());
        }
        self.frame.push_str("\x1b[0m");
        Ok(())
    }

    // Hidden for as long as the dashboard is shown.
    fn hide_cursor(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn show_cursor(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn get_cursor_position(&mut self) -> io::Result<Position> {
        Ok(Position::ORIGIN)
    }

    fn set_cursor_position<P: Into<Position>>(&mut self, position: P) -> io::Result<()> {
        let Position { x, y } = position.into();
        self.write(format_args!("\x1b[{};{}H", y + 1, x + 1))
    }

    fn clear(&mut self) -> io::Result<()> {
        self.clear_region(ClearType::All)
    }

    fn clear_region(&mut self, region: ClearType) -> io::Result<()> {
        self.frame.push_str(match region {
            ClearType::All => "\x1b[0m\x1b[2J",
            ClearType::AfterCursor => "\x1b[J",
            ClearType::BeforeCursor => "\x1b[1J",
            ClearType::CurrentLine => "\x1b[2K",
            ClearType::UntilNewLine => "\x1b[K",
        });
        Ok(())
    }

    fn size(&self) -> io::Result<Size> {
        self.tty.size()
    }

    fn window_size(&mut self) -> io::Result<WindowSize> {
        Ok(WindowSize {
            columns_rows: self.tty.size()?,
            pixels: Size::ZERO,
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        // Terminals that know these two show all changes between them at once; others ignore them.
        let frame = format!("\x1b[?2026h{}\x1b[?2026l", self.frame);
        self.frame.clear();
        self.tty.show(frame.as_bytes())
    }
}

const MODIFIERS: [(Modifier, &str); 3] = [
    (Modifier::BOLD, ";1"),
    (Modifier::DIM, ";2"),
    (Modifier::REVERSED, ";7"),
];

/// The colours that the dashboard uses.
fn color(color: Color) -> &'static str {
    match color {
        Color::Red => ";31",
        Color::Green => ";32",
        Color::Yellow => ";33",
        Color::Cyan => ";36",
        _ => "",
    }
}
