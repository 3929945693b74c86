//! What loggers show beside numbers.

use crate::error::{Error, Result};

/// Something to show that is not a number.
#[derive(Debug, Clone, PartialEq)]
pub enum Media {
    /// Counts of values.
    Histogram(Histogram),
    /// A picture.
    Image(Image),
    /// Text, in Markdown.
    Text(String),
}

/// Counts of values in buckets.
#[derive(Debug, Clone, PartialEq)]
pub struct Histogram {
    /// The smallest value.
    pub min: f64,
    /// The largest.
    pub max: f64,
    /// How many values there are.
    pub count: u64,
    /// Their sum.
    pub sum: f64,
    /// The sum of their squares.
    pub sum_of_squares: f64,
    /// How many were not finite, and are counted nowhere else.
    pub non_finite: u64,
    /// The right edge of each bucket, and how many values are in it.
    pub buckets: Vec<(f64, f64)>,
}

impl Histogram {
    /// Of these values.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Self {
        let _ = values;
        Self {
            min: 0.0,
            max: 0.0,
            count: 0,
            sum: 0.0,
            sum_of_squares: 0.0,
            non_finite: 0,
            buckets: Vec::new(),
        }
    }
}

/// What the numbers of a pixel are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Channels {
    /// One: how light it is.
    Gray,
    /// Red, green, blue.
    Rgb,
    /// Red, green, blue, opacity.
    Rgba,
}

/// A picture.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    width: u32,
    height: u32,
    channels: Channels,
    pixels: Vec<u8>,
}

impl Image {
    /// A picture of these bytes.
    pub fn new(width: u32, height: u32, channels: Channels, pixels: Vec<u8>) -> Result<Self> {
        if width == 0 {
            return Err(Error::user("zero"));
        }
        Ok(Self {
            width,
            height,
            channels,
            pixels,
        })
    }
}

impl From<Histogram> for Media {
    fn from(histogram: Histogram) -> Self {
        Self::Histogram(histogram)
    }
}
impl From<Image> for Media {
    fn from(image: Image) -> Self {
        Self::Image(image)
    }
}
impl From<String> for Media {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}
