//! What a logger takes beside numbers.

use crate::error::{Error, Result};
use std::sync::LazyLock;

/// A histogram, an image or a text.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Media {
    /// How values are distributed.
    Histogram(Histogram),
    /// A picture.
    Image(Image),
    /// A text, in Markdown.
    Text(String),
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

impl From<&str> for Media {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

/// Counts of values in buckets, TensorBoard's form.
///
/// ```
/// use firebox::logger::Histogram;
///
/// let histogram = Histogram::of([1.0, 1.0, 3.0, f64::NAN]);
/// assert_eq!((histogram.min, histogram.max, histogram.sum), (1.0, 3.0, 5.0));
/// assert_eq!((histogram.count, histogram.non_finite), (3, 1));
/// let counts: Vec<f64> = histogram.buckets.iter().map(|(_, count)| *count).collect();
/// assert_eq!(counts, [2.0, 0.0, 1.0]);
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Histogram {
    /// The smallest finite value; 0 if there is none.
    pub min: f64,
    /// The largest finite value; 0 if there is none.
    pub max: f64,
    /// How many values are finite. NaN and infinities are in none of the other fields.
    pub count: u64,
    /// How many values are NaN or infinite.
    pub non_finite: u64,
    /// The sum of the finite values.
    pub sum: f64,
    /// The sum of the squares of the finite values.
    pub sum_of_squares: f64,
    /// (right edge, how many values fall into the bucket), edges rising, the counts adding up to
    /// `count`. A bucket begins where the one before it ends, the first one at `min`; a value on an
    /// edge is in the bucket that begins there.
    pub buckets: Vec<(f64, f64)>,
}

impl Histogram {
    /// Counts values into TensorBoard's own buckets: edges at ±1e-12 · 1.1ⁿ up to ±1e20 and at 0,
    /// one bucket for what is beyond on either side. Of buckets without values that follow one
    /// another, one is kept between others, none at the ends.
    ///
    /// The edges and which bucket a value falls into are those of TensorFlow's
    /// `tensorflow/core/lib/histogram/histogram.cc`.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Self {
        let mut counts = vec![0_u64; EDGES.len()];
        let mut non_finite = 0;
        let (mut min, mut max) = (f64::INFINITY, f64::NEG_INFINITY);
        let (mut sum, mut sum_of_squares) = (0.0, 0.0);
        for value in values {
            if !value.is_finite() {
                non_finite += 1;
                continue;
            }
            (min, max) = (min.min(value), max.max(value));
            sum += value;
            sum_of_squares += value * value;
            // The last edge is the largest float, which has no bucket behind it.
            let bucket = EDGES.partition_point(|edge| *edge <= value);
            counts[bucket.min(EDGES.len() - 1)] += 1;
        }
        let count = counts.iter().sum();
        if count == 0 {
            (min, max) = (0.0, 0.0);
        }
        Self {
            min,
            max,
            count,
            non_finite,
            sum,
            sum_of_squares,
            buckets: without_runs_of_empty(&counts),
        }
    }
}

/// The right edges of the buckets.
static EDGES: LazyLock<Vec<f64>> = LazyLock::new(|| {
    // Multiplied step by step, as TensorFlow does: a power would round differently.
    let steps = std::iter::successors(Some(1e-12), |edge| Some(edge * 1.1));
    let mut positive: Vec<f64> = steps.take_while(|edge| *edge < 1e20).collect();
    positive.push(f64::MAX);
    let negative = positive.iter().rev().map(|edge| -edge);
    negative
        .chain([0.0])
        .chain(positive.iter().copied())
        .collect()
});

fn without_runs_of_empty(counts: &[u64]) -> Vec<(f64, f64)> {
    let mut buckets: Vec<(f64, f64)> = Vec::new();
    for (edge, count) in EDGES.iter().zip(counts) {
        match buckets.last_mut() {
            None if *count == 0 => {}
            // It still ends where the next one with values begins.
            Some((end, 0.0)) if *count == 0 => *end = *edge,
            _ => buckets.push((*edge, *count as f64)),
        }
    }
    if let Some((_, 0.0)) = buckets.last() {
        buckets.pop();
    }
    buckets
}

/// A picture: 8-bit pixels, row by row from the top, each row from the left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    /// In pixels.
    pub width: u32,
    /// In pixels.
    pub height: u32,
    /// What a pixel consists of.
    pub channels: Channels,
    /// `width · height · channels` bytes.
    pub pixels: Vec<u8>,
}

/// What a pixel consists of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Channels {
    /// One byte: brightness.
    Gray = 1,
    /// Three bytes: red, green, blue.
    Rgb = 3,
    /// Four bytes: red, green, blue, and 255 where it is opaque.
    Rgba = 4,
}

impl Image {
    /// An image of these pixels.
    ///
    /// ```
    /// use firebox::logger::{Channels, Image};
    ///
    /// let image = Image::new(2, 1, Channels::Rgb, vec![255, 0, 0, 0, 0, 255])?;
    /// assert!(Image::new(2, 2, Channels::Rgb, image.pixels).is_err());
    /// # Ok::<_, firebox::Error>(())
    /// ```
    ///
    /// # Errors
    /// A width or height of 0, or another number of bytes than they need.
    pub fn new(width: u32, height: u32, channels: Channels, pixels: Vec<u8>) -> Result<Self> {
        let image = Self {
            width,
            height,
            channels,
            pixels,
        };
        image.check()?;
        Ok(image)
    }

    /// The image as a PNG file.
    #[cfg(any(feature = "mlflow", feature = "tensorboard"))]
    pub(super) fn png(&self) -> Result<Vec<u8>> {
        self.check()?;
        let failed = |e| Error::data("the image cannot be written as PNG").with_source(e);
        let mut file = Vec::new();
        let mut encoder = png::Encoder::new(&mut file, self.width, self.height);
        encoder.set_color(match self.channels {
            Channels::Gray => png::ColorType::Grayscale,
            Channels::Rgb => png::ColorType::Rgb,
            Channels::Rgba => png::ColorType::Rgba,
        });
        encoder.set_compression(png::Compression::Fast);
        let mut writer = encoder.write_header().map_err(failed)?;
        writer.write_image_data(&self.pixels).map_err(failed)?;
        writer.finish().map_err(failed)?;
        Ok(file)
    }

    /// Whether it has as many pixels as it says.
    fn check(&self) -> Result<()> {
        let (width, height) = (self.width, self.height);
        if width == 0 || height == 0 {
            return Err(Error::data(format!(
                "an image of {width} x {height} pixels has none; use a width and a height from 1"
            )));
        }
        let channels = self.channels as u8;
        let needed = u128::from(width) * u128::from(height) * u128::from(channels);
        let found = self.pixels.len();
        if found as u128 != needed {
            return Err(Error::data(format!(
                "an image of {width} x {height} pixels and {channels} channels has {needed} bytes, \
                 not {found}"
            )));
        }
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn edges_are_those_of_tensorflow() {
        // 774 steps of 10 % lie between 1e-12 and 1e20.
        assert_eq!(EDGES.len(), 2 * 775 + 1);
        assert_eq!(EDGES[0], -f64::MAX);
        assert_eq!(EDGES[774..777], [-1e-12, 0.0, 1e-12]);
        assert_eq!(EDGES[777], 1e-12 * 1.1);
        assert_eq!(EDGES[1550], f64::MAX);
        assert!(EDGES[1549] < 1e20 && EDGES[1549] * 1.1 >= 1e20);
        assert!(EDGES.is_sorted_by(|a, b| a < b));
    }

    #[test]
    fn values_are_counted_where_they_belong() {
        let just_below = f64::from_bits(1e-12_f64.to_bits() - 1);
        let values = [0.0, -0.0, just_below, 1e-12, 1.5e-12, -1e-12, -1e-13];
        let histogram = Histogram::of(values);
        let mut edges = vec![0.0, 1e-12, 1e-12 * 1.1];
        // 1.5e-12 is five steps up: 1.1^4 = 1.46, 1.1^5 = 1.61.
        let mut edge = 1e-12 * 1.1;
        for _ in 0..3 {
            edge *= 1.1;
        }
        edges.extend([edge, edge * 1.1]);
        let found: Vec<f64> = histogram.buckets.iter().map(|(edge, _)| *edge).collect();
        assert_eq!(found, edges);
        let counts: Vec<f64> = histogram.buckets.iter().map(|(_, count)| *count).collect();
        // [-1e-12, 0) has -1e-12 and -1e-13; [0, 1e-12) has both zeros and what is just below.
        assert_eq!(counts, [2.0, 3.0, 1.0, 0.0, 1.0]);
        assert_eq!((histogram.min, histogram.max), (-1e-12, 1.5e-12));
    }

    #[test]
    fn extremes_have_buckets() {
        let values = [f64::MAX, f64::MIN, 1e300, -1e300];
        let histogram = Histogram::of(values);
        let ends: Vec<f64> = histogram.buckets.iter().map(|b| b.1).collect();
        assert_eq!(ends, [2.0, 0.0, 2.0]);
        assert_eq!(histogram.buckets[2].0, f64::MAX);
        assert_eq!((histogram.min, histogram.max), (f64::MIN, f64::MAX));
        assert_eq!(
            (histogram.sum, histogram.sum_of_squares),
            (0.0, f64::INFINITY)
        );
    }

    #[test]
    fn what_is_not_finite_is_counted_apart() {
        let strange = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY];
        let histogram = Histogram::of([2.0, -3.0].into_iter().chain(strange));
        assert_eq!((histogram.count, histogram.non_finite), (2, 3));
        assert_eq!((histogram.min, histogram.max), (-3.0, 2.0));
        assert_eq!((histogram.sum, histogram.sum_of_squares), (-1.0, 13.0));
        let none = Histogram::of(strange);
        assert_eq!(
            (none.count, none.min, none.max, none.sum),
            (0, 0.0, 0.0, 0.0)
        );
        assert!(none.buckets.is_empty());
    }

    #[test]
    fn every_value_is_in_one_bucket() {
        // A multiplicative congruential generator, for values of every size and sign.
        let mut seed = 1_u64;
        let values = std::iter::repeat_with(|| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let size = (seed >> 33) as f64 / f64::from(1_u32 << 31) * 80.0 - 40.0;
            size.exp()
                .copysign(if seed >> 63 == 0 { 1.0 } else { -1.0 })
        });
        let values: Vec<f64> = values.take(10_000).collect();
        let histogram = Histogram::of(values.iter().copied());
        let sum: f64 = histogram.buckets.iter().map(|(_, count)| count).sum();
        assert_eq!((sum, histogram.count), (10_000.0, 10_000));
        let mut left = histogram.min;
        for (index, (right, count)) in histogram.buckets.iter().enumerate() {
            assert!(left < *right);
            let inside = values.iter().filter(|v| left <= **v && **v < *right);
            assert_eq!(inside.count() as f64, *count, "bucket {index}");
            left = *right;
        }
        assert!(histogram.max < left);
        assert!(histogram.buckets.windows(2).all(|b| b[0].1 + b[1].1 > 0.0));
    }

    #[test]
    fn an_image_has_the_pixels_it_says() {
        let text = |width, height, channels, bytes| {
            let image = Image::new(width, height, channels, vec![0; bytes]);
            image.map_err(|e| e.to_string()).err()
        };
        assert_eq!(text(3, 2, Channels::Gray, 6), None);
        assert_eq!(text(3, 2, Channels::Rgb, 18), None);
        assert_eq!(text(3, 2, Channels::Rgba, 24), None);
        assert_eq!(
            text(3, 2, Channels::Rgb, 6).unwrap(),
            "an image of 3 x 2 pixels and 3 channels has 18 bytes, not 6"
        );
        assert_eq!(
            text(0, 2, Channels::Gray, 0).unwrap(),
            "an image of 0 x 2 pixels has none; use a width and a height from 1"
        );
        let huge = text(u32::MAX, u32::MAX, Channels::Rgba, 4).unwrap();
        assert!(
            huge.contains("has 73786976260478468100 bytes, not 4"),
            "{huge}"
        );
    }
}
