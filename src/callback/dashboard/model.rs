//! What the dashboard shows.

use std::collections::VecDeque;
use std::time::Duration;

/// Points that a series keeps, and twice as many as a chart has columns on a wide terminal.
const POINTS: usize = 2048;

/// Lines that wait for the dashboard to close.
const NOTES: usize = 1000;

/// What the dashboard shows; the callback sets the fields.
#[derive(Debug, Clone, Default)]
pub(crate) struct Model {
    /// What is trained.
    pub(crate) title: String,
    /// `train`, `val`, `test`.
    pub(crate) stage: String,
    /// Index of the epoch, from 0.
    pub(crate) epoch: u64,
    /// Epochs that the run is to have.
    pub(crate) max_epochs: Option<u64>,
    /// Batches finished in this epoch.
    pub(crate) batch: u64,
    /// Batches that the epoch is said to have.
    pub(crate) batches: Option<u64>,
    /// Optimizer steps taken.
    pub(crate) global_step: u64,
    /// Training samples a second.
    pub(crate) samples_per_second: Option<f64>,
    /// How long the run has trained.
    pub(crate) elapsed: Duration,
    /// How long it will still take.
    pub(crate) eta: Option<Duration>,
    /// Whether the run ends after this step.
    pub(crate) stop_asked: bool,
    /// In the order they came up.
    pub(crate) metrics: Vec<Metric>,
    /// Each parameter group's name and learning rate.
    pub(crate) learning_rates: Vec<(String, f64)>,
    /// Lines for people, the latest last.
    pub(crate) notes: VecDeque<String>,
    /// Notes that were dropped since there were too many.
    pub(crate) dropped_notes: u64,
    /// What the run computes on.
    pub(crate) devices: Vec<Device>,
}

impl Model {
    /// Takes a value. `train/loss` and `val/loss` are two series of the metric `loss`; a name without
    /// such a beginning is a metric of its own.
    pub(crate) fn record(&mut self, name: &str, step: u64, value: f64) {
        let (split, name) = match name.split_once('/') {
            Some(("train", rest)) => (Split::Train, rest),
            Some(("val", rest)) => (Split::Val, rest),
            _ => (Split::Other, name),
        };
        let is_same = |m: &Metric| m.name == name && m.is_split == (split != Split::Other);
        let index = self.metrics.iter().position(is_same).unwrap_or_else(|| {
            self.metrics.push(Metric::new(name, split));
            self.metrics.len() - 1
        });
        let metric = &mut self.metrics[index];
        let series = match split {
            Split::Train | Split::Other => &mut metric.train,
            Split::Val => &mut metric.val,
        };
        series.push(step, value);
    }

    /// Takes lines for people. They are printed when the dashboard closes.
    pub(crate) fn note(&mut self, text: &str) {
        self.notes.extend(text.lines().map(str::to_owned));
        while self.notes.len() > NOTES {
            self.notes.pop_front();
            self.dropped_notes += 1;
        }
    }

    /// The part of this epoch that is done, if that is known.
    pub(crate) fn epoch_share(&self) -> Option<f64> {
        let batches = self.batches.filter(|n| *n > 0)?;
        Some((self.batch as f64 / batches as f64).min(1.0))
    }

    /// The part of the run that is done, if that is known.
    pub(crate) fn run_share(&self) -> Option<f64> {
        let epochs = self.max_epochs.filter(|n| *n > 0)?;
        let done = self.epoch as f64 + self.epoch_share().unwrap_or(0.0);
        Some((done / epochs as f64).min(1.0))
    }
}

/// A device and how busy it is. What is not known is `None`.
#[derive(Debug, Clone, Default)]
pub(crate) struct Device {
    /// As in `cuda:0`.
    pub(crate) name: String,
    /// Bytes.
    pub(crate) memory_used: Option<u64>,
    /// Bytes.
    pub(crate) memory_total: Option<u64>,
    /// From 0 to 1.
    pub(crate) utilization: Option<f64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Split {
    Train,
    Val,
    Other,
}

/// Which values of a metric are good.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Goal {
    /// Low ones, as of a loss.
    Low,
    /// High ones, as of an accuracy.
    High,
}

/// A value that is followed.
#[derive(Debug, Clone)]
pub(crate) struct Metric {
    /// Without `train/` and `val/`.
    pub(crate) name: String,
    /// Which values are good, if the name tells; `None` if it does not.
    pub(crate) goal: Option<Goal>,
    /// Whether its series are of training and validation; otherwise there is the first alone.
    pub(crate) is_split: bool,
    pub(crate) train: Series,
    pub(crate) val: Series,
}

impl Metric {
    fn new(name: &str, split: Split) -> Self {
        Self {
            name: name.to_owned(),
            goal: goal(name),
            is_split: split != Split::Other,
            train: Series::default(),
            val: Series::default(),
        }
    }

    /// The best value of the validation, or of the training where there is no validation.
    pub(crate) fn best(&self) -> Option<f64> {
        let by_val = self.val.low().is_some();
        let series = if by_val { &self.val } else { &self.train };
        match self.goal? {
            Goal::Low => series.low(),
            Goal::High => series.high(),
        }
    }

    /// Values that cannot be drawn.
    pub(crate) fn not_finite(&self) -> u64 {
        self.train.not_finite + self.val.not_finite
    }
}

/// What the words of a name say about its good values.
fn goal(name: &str) -> Option<Goal> {
    let name = name.to_lowercase();
    let has = |known: &[&str]| {
        let mut words = name.split(|c: char| !c.is_alphanumeric());
        words.any(|word| known.contains(&word))
    };
    if has(&["loss", "error", "perplexity", "mse", "mae", "rmse"]) {
        Some(Goal::Low)
    } else if has(&["accuracy", "acc", "f1", "auc", "auroc", "recall", "iou"]) {
        Some(Goal::High)
    } else {
        None
    }
}

/// The values of one name, thinned: of each bucket the lowest and the highest value stay, so that a
/// spike of a single step is seen in a run of any length.
#[derive(Debug, Clone)]
pub(crate) struct Series {
    /// The low and the high point of each full bucket, in the order they came.
    points: Vec<Point>,
    /// Values of a full bucket. Of two, both stay.
    size: usize,
    open: Option<Bucket>,
    newest: Option<Point>,
    range: Option<Bucket>,
    last: Option<f64>,
    not_finite: u64,
}

/// Step and value.
type Point = (f64, f64);

#[derive(Debug, Clone, Copy)]
struct Bucket {
    count: usize,
    low: Point,
    high: Point,
}

impl Default for Series {
    fn default() -> Self {
        Self {
            points: Vec::new(),
            size: 2,
            open: None,
            newest: None,
            range: None,
            last: None,
            not_finite: 0,
        }
    }
}

impl Series {
    /// Takes a value. One that is NaN or infinite is counted.
    pub(crate) fn push(&mut self, step: u64, value: f64) {
        self.last = Some(value);
        if !value.is_finite() {
            self.not_finite += 1;
            return;
        }
        let point = (step as f64, value);
        self.newest = Some(point);
        self.range = Some(Bucket::with(self.range, point));
        let open = Bucket::with(self.open, point);
        self.open = Some(open);
        if open.count == self.size {
            self.open = None;
            self.points.extend(open.points());
        }
        if self.points.len() >= POINTS {
            self.thin();
        }
    }

    /// Two buckets become one.
    fn thin(&mut self) {
        let pairs = self.points.chunks(4);
        let merged = pairs.filter_map(|pair| {
            let add = |bucket, point: &Point| Some(Bucket::with(bucket, *point));
            pair.iter().fold(None, add)
        });
        self.points = merged.flat_map(|bucket: Bucket| bucket.points()).collect();
        self.size *= 2;
    }

    /// Steps and values to draw, in the order they came.
    pub(crate) fn points(&self) -> impl Iterator<Item = Point> {
        let open = self.open.map(|bucket| bucket.points());
        let full = self.points.iter().copied();
        full.chain(open.into_iter().flatten()).chain(self.newest)
    }

    /// The last value, whatever it is.
    pub(crate) fn last(&self) -> Option<f64> {
        self.last
    }

    /// The lowest finite value.
    pub(crate) fn low(&self) -> Option<f64> {
        self.range.map(|range| range.low.1)
    }

    /// The highest finite value.
    pub(crate) fn high(&self) -> Option<f64> {
        self.range.map(|range| range.high.1)
    }
}

impl Bucket {
    /// The bucket and one more point.
    fn with(bucket: Option<Self>, point: Point) -> Self {
        let Some(mut bucket) = bucket else {
            return Self {
                count: 1,
                low: point,
                high: point,
            };
        };
        bucket.count += 1;
        if point.1 < bucket.low.1 {
            bucket.low = point;
        }
        // Of equal values the last, so that a level stretch keeps its length.
        if point.1 >= bucket.high.1 {
            bucket.high = point;
        }
        bucket
    }

    fn points(self) -> [Point; 2] {
        match self.low.0 <= self.high.0 {
            true => [self.low, self.high],
            false => [self.high, self.low],
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn few_values_all_stay() {
        let mut series = Series::default();
        (0..5).for_each(|i| series.push(i, 10.0 - i as f64));
        let points: Vec<_> = series.points().collect();
        // The open bucket's one value is its low, its high and the newest.
        let expected = [10.0, 9.0, 8.0, 7.0, 6.0, 6.0, 6.0];
        assert_eq!(points.iter().map(|p| p.1).collect::<Vec<_>>(), expected);
        assert_eq!(points.last(), Some(&(4.0, 6.0)));
    }

    #[test]
    fn a_spike_of_one_step_stays_in_a_long_run() {
        let mut series = Series::default();
        for step in 0..1_000_000 {
            let value = match step {
                123_456 => 50.0,
                654_321 => -50.0,
                _ => (step % 7) as f64,
            };
            series.push(step, value);
        }
        let points: Vec<_> = series.points().collect();
        assert!(
            points.contains(&(123_456.0, 50.0)),
            "the high spike is lost"
        );
        assert!(
            points.contains(&(654_321.0, -50.0)),
            "the low spike is lost"
        );
        assert!(points.len() <= POINTS + 3, "{} points", points.len());
        assert!(points.len() > POINTS / 2, "{} points", points.len());
        assert!(points.is_sorted_by(|a, b| a.0 <= b.0));
        assert_eq!(points.last(), Some(&(999_999.0, (999_999 % 7) as f64)));
        assert_eq!((series.low(), series.high()), (Some(-50.0), Some(50.0)));
        // What is old is as dense as what is new.
        let half = points.iter().filter(|p| p.0 < 500_000.0).count();
        let share = half as f64 / points.len() as f64;
        assert!((0.49..0.51).contains(&share), "{share}");
    }

    #[test]
    fn a_level_stretch_keeps_its_ends() {
        let mut series = Series::default();
        (0..4096).for_each(|step| series.push(step, 1.0));
        let points: Vec<_> = series.points().collect();
        assert_eq!(points[0], (0.0, 1.0));
        assert_eq!(points.last(), Some(&(4095.0, 1.0)));
    }

    #[test]
    fn what_cannot_be_drawn_is_counted() {
        let mut model = Model::default();
        for (step, value) in [1.0, f64::NAN, f64::INFINITY, 3.0, f64::NEG_INFINITY]
            .iter()
            .enumerate()
        {
            model.record("train/loss", step as u64, *value);
        }
        let metric = &model.metrics[0];
        assert_eq!(metric.not_finite(), 3);
        assert_eq!(metric.train.last(), Some(f64::NEG_INFINITY));
        assert_eq!((metric.train.low(), metric.best()), (Some(1.0), Some(1.0)));
        assert!(metric.train.points().all(|(_, y)| y.is_finite()));
    }

    #[test]
    fn training_and_validation_are_one_metric() {
        let mut model = Model::default();
        for (name, value) in [
            ("train/loss", 3.0),
            ("val/loss", 2.0),
            ("val/loss", 1.0),
            ("val/loss", 1.5),
            ("val/top5_acc", 0.5),
            ("loss", 9.0),
            ("test/loss", 8.0),
            ("lr", 0.1),
        ] {
            model.record(name, 1, value);
        }
        let names: Vec<_> = model.metrics.iter().map(|m| m.name.as_str()).collect();
        assert_eq!(names, ["loss", "top5_acc", "loss", "test/loss", "lr"]);
        let best: Vec<_> = model.metrics.iter().map(Metric::best).collect();
        assert_eq!(best, [Some(1.0), Some(0.5), Some(9.0), Some(8.0), None]);
        assert_eq!(model.metrics[0].val.last(), Some(1.5));
        assert_eq!(model.metrics[1].goal, Some(Goal::High));
    }

    #[test]
    fn shares_of_the_epoch_and_the_run() {
        let mut model = Model {
            epoch: 2,
            max_epochs: Some(4),
            batch: 5,
            batches: Some(10),
            ..Model::default()
        };
        assert_eq!(
            (model.epoch_share(), model.run_share()),
            (Some(0.5), Some(0.625))
        );
        model.batch = 25;
        assert_eq!(
            (model.epoch_share(), model.run_share()),
            (Some(1.0), Some(0.75))
        );
        model.batches = None;
        assert_eq!((model.epoch_share(), model.run_share()), (None, Some(0.5)));
        model.batches = Some(0);
        model.max_epochs = Some(0);
        assert_eq!((model.epoch_share(), model.run_share()), (None, None));
    }

    #[test]
    fn the_oldest_notes_are_dropped_and_counted() {
        let mut model = Model::default();
        (0..NOTES).for_each(|i| model.note(&format!("line {i}")));
        model.note("two\nmore");
        assert_eq!(model.notes.len(), NOTES);
        assert_eq!(model.notes.front().unwrap(), "line 2");
        assert_eq!(model.notes.back().unwrap(), "more");
        assert_eq!(model.dropped_notes, 2);
    }
}
