//! Random numbers that depend on what is drawn for, not on who draws or when.

use std::convert::Infallible;

use rand::{SeedableRng, TryRng};
use rand_chacha::ChaCha8Rng;

/// The random stream of one sample in one epoch, or of one epoch's order.
///
/// It is a function of the seed, the epoch and the sample's index alone. The number of workers or
/// devices, and the order of loading, do not change what a sample draws; a resumed run draws what
/// the uninterrupted one would have. The four words are the key of a ChaCha8 cipher, so streams of
/// different samples never coincide, and the values are the same on every platform.
///
/// The methods here cover simple augmentations. It is also a generator for the `rand` crate (0.10):
/// `rand::RngExt` and every distribution work with it.
///
/// ```
/// use firebox::data::SampleRng;
///
/// let (mut a, mut b) = (SampleRng::new(42, 0, 7), SampleRng::new(42, 0, 7));
/// assert_eq!(a.next_u64(), b.next_u64());
/// assert!((0.0..1.0).contains(&a.uniform()));
/// assert!(a.below(6) < 6);
/// ```
#[derive(Debug, Clone)]
pub struct SampleRng(ChaCha8Rng);

/// What a stream is for: the fourth word of its key.
const SAMPLE: u64 = 1;
const ORDER: u64 = 2;

impl SampleRng {
    /// The stream of one sample in one epoch.
    pub fn new(seed: u64, epoch: u64, sample: usize) -> Self {
        Self::keyed([seed, epoch, sample as u64, SAMPLE])
    }

    /// The stream that decides an epoch's order.
    pub(super) fn for_order(seed: u64, epoch: u64) -> Self {
        Self::keyed([seed, epoch, 0, ORDER])
    }

    fn keyed(words: [u64; 4]) -> Self {
        let mut key = [0; 32];
        for (bytes, word) in key.chunks_exact_mut(8).zip(words) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        Self(ChaCha8Rng::from_seed(key))
    }

    /// A uniform 64-bit number.
    pub fn next_u64(&mut self) -> u64 {
        match self.0.try_next_u64() {
            Ok(word) => word,
        }
    }

    /// A uniform number in `[0, 1)`, a multiple of 2⁻⁵³.
    pub fn uniform(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 * (1.0 / (1_u64 << 53) as f64)
    }

    /// True with the given probability.
    pub fn chance(&mut self, probability: f64) -> bool {
        self.uniform() < probability
    }

    /// A uniform whole number in `0..bound`, without bias; 0 if `bound` is 0.
    pub fn below(&mut self, bound: usize) -> usize {
        // Lemire 2019, "Fast random integer generation in an interval", in 64 bits on every
        // platform. It is written out, because `rand` may change its own way between versions.
        let bound = bound as u64;
        loop {
            let product = u128::from(self.next_u64()) * u128::from(bound);
            let low = product as u64;
            if low >= bound || low >= bound.wrapping_neg() % bound {
                return (product >> 64) as usize;
            }
        }
    }

    /// Shuffles in place (Fisher and Yates), every order equally likely.
    pub fn shuffle<T>(&mut self, values: &mut [T]) {
        for last in (1..values.len()).rev() {
            values.swap(last, self.below(last + 1));
        }
    }
}

impl TryRng for SampleRng {
    type Error = Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Infallible> {
        self.0.try_next_u32()
    }

    fn try_next_u64(&mut self) -> Result<u64, Infallible> {
        self.0.try_next_u64()
    }

    fn try_fill_bytes(&mut self, dst: &mut [u8]) -> Result<(), Infallible> {
        self.0.try_fill_bytes(dst)
    }
}
