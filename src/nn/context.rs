//! What a layer must know of the run: which samples the pass is over, and who else takes part.
//!
//! A model's `forward` is the user's and hands nothing through to its layers, so the trainer leaves
//! it with the thread that computes the pass.

use crate::error::{Error, ErrorKind, Result};
use std::cell::RefCell;
use std::fmt;
use std::sync::Arc;

/// What is known of the forward and backward pass of one replica's part of a batch.
pub(crate) struct PassContext {
    pub(crate) seed: u64,
    pub(crate) epoch: u64,
    pub(crate) batch: usize,
    /// How many samples this replica's part has.
    pub(crate) samples: usize,
    /// The position of its first sample in the whole batch.
    pub(crate) first_sample: usize,
    /// How many samples the whole batch has.
    pub(crate) batch_samples: usize,
    /// The replicas that layers compute batch statistics over; `None` where this is the only one,
    /// and where each replica keeps to its own part.
    pub(crate) sum: Option<Arc<dyn SumOverReplicas>>,
}

/// Sums over the replicas that take part in a pass.
pub(crate) trait SumOverReplicas: Send + Sync {
    /// The element-wise sum of what the replicas give. All of them call it, in the same order and
    /// with the same number of values, and all get the same bits back.
    ///
    /// # Errors
    /// Another replica has failed or does not come.
    fn sum(&self, values: Vec<f64>) -> Result<Vec<f64>>;
}

/// A pass on its way.
struct Pass {
    context: PassContext,
    /// The calls of dropout layers so far.
    dropouts: u64,
    /// The depth of the last synchronized layer's node in the graph of gradients.
    depth: Option<usize>,
}

thread_local! {
    static PASS: RefCell<Option<Pass>> = const { RefCell::new(None) };
}

/// Runs a forward and backward pass with its context on this thread; what was there before is put
/// back, after a panic too.
pub(crate) fn within<T>(context: PassContext, pass: impl FnOnce() -> T) -> T {
    let started = Pass {
        context,
        dropouts: 0,
        depth: None,
    };
    let _before = Before(PASS.replace(Some(started)));
    pass()
}

struct Before(Option<Pass>);

impl Drop for Before {
    fn drop(&mut self) {
        PASS.set(self.0.take());
    }
}

/// Waits until all replicas are here, if layers of this pass have been synchronized.
///
/// Every backward pass but the first of a `within` needs it before. Burn holds a replica's graph
/// locked during its backward pass and, at the end of one, locks the graphs of all others in turn:
/// a replica that ends its first pass would wait for one that is in its second, and that one, in a
/// layer's sum, for the first.
///
/// # Errors
/// Another replica has failed or does not come.
pub(crate) fn meet() -> Result<()> {
    match (depth(), replicas()) {
        (Some(_), Some(replicas)) => replicas.sum(Vec::new()).map(drop),
        _ => Ok(()),
    }
}

/// Whether a layer of this pass has taken its statistics over all replicas.
pub(crate) fn is_synchronized() -> bool {
    depth().is_some() && replicas().is_some()
}

/// What all replicas divide the weights of a batch's losses by, where these would be too large: a
/// power of two near the number of its samples, so that nothing is rounded. 1 outside of a pass.
pub(crate) fn unit() -> f64 {
    let samples = PASS.with_borrow(|pass| pass.as_ref().map_or(1, |p| p.context.batch_samples));
    (samples.max(1) as f64).log2().floor().exp2()
}

/// What the draws of one call of a dropout layer depend on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct DropoutCall {
    /// The run's seed, the epoch, the batch, and which call of the pass it is.
    pub(super) words: [u64; 4],
    pub(super) samples: usize,
    pub(super) first_sample: usize,
}

/// Counts a call of a dropout layer; `None` outside of a pass.
pub(super) fn next_dropout() -> Option<DropoutCall> {
    PASS.with_borrow_mut(|pass| {
        let Pass {
            context, dropouts, ..
        } = pass.as_mut()?;
        let call = *dropouts;
        *dropouts += 1;
        Some(DropoutCall {
            words: [context.seed, context.epoch, context.batch as u64, call],
            samples: context.samples,
            first_sample: context.first_sample,
        })
    })
}

/// How many calls of dropout layers there were in this pass.
pub(crate) fn dropouts() -> u64 {
    PASS.with_borrow(|pass| pass.as_ref().map_or(0, |pass| pass.dropouts))
}

/// Goes back to a call of a dropout layer, to repeat what followed.
pub(crate) fn set_dropouts(calls: u64) {
    PASS.with_borrow_mut(|pass| {
        if let Some(pass) = pass {
            pass.dropouts = calls;
        }
    });
}

/// Where the draws of a part of the model begin, for it to be computed twice.
pub(crate) fn seed_of_block(block: usize) -> Option<u64> {
    PASS.with_borrow(|pass| {
        let PassContext {
            seed,
            epoch,
            batch,
            first_sample,
            ..
        } = pass.as_ref()?.context;
        let words = [seed, epoch, batch as u64, first_sample as u64, block as u64];
        Some(xxhash_rust::xxh3::xxh3_64(bytemuck::bytes_of(&words)))
    })
}

/// The replicas to compute statistics over, this one included.
pub(super) fn replicas() -> Option<Replicas> {
    PASS.with_borrow(|pass| pass.as_ref()?.context.sum.clone().map(Replicas))
}

/// The depth of the last synchronized layer in this pass's graph.
pub(super) fn depth() -> Option<usize> {
    PASS.with_borrow(|pass| pass.as_ref()?.depth)
}

/// Notes the depth of a synchronized layer.
pub(super) fn set_depth(depth: usize) {
    PASS.with_borrow_mut(|pass| {
        if let Some(pass) = pass {
            pass.depth = Some(depth);
        }
    });
}

/// The replicas of a pass, as Burn's graph keeps them for the backward pass.
#[derive(Clone)]
pub(super) struct Replicas(Arc<dyn SumOverReplicas>);

impl Replicas {
    pub(super) fn sum(&self, values: Vec<f64>) -> Result<Vec<f64>> {
        let given = values.len();
        let sums = self.0.sum(values)?;
        match sums.len() == given {
            true => Ok(sums),
            false => Err(Error::new(
                ErrorKind::Backend,
                format!("gave {given} values to sum, and got {} back", sums.len()),
            )),
        }
    }
}

impl fmt::Debug for Replicas {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Replicas")
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, reason = "tests")]
pub(super) mod testing {
    //! Replicas that are threads of a test.

    use super::*;
    use std::sync::{Condvar, Mutex};
    use std::time::Duration;

    /// Where the replicas of a test meet.
    struct Table {
        round: Mutex<Round>,
        turned: Condvar,
    }

    struct Round {
        number: u64,
        parts: Vec<Option<Vec<f64>>>,
        sums: Result<Vec<f64>, String>,
    }

    struct Seat {
        table: Arc<Table>,
        replica: usize,
    }

    impl SumOverReplicas for Seat {
        fn sum(&self, values: Vec<f64>) -> Result<Vec<f64>> {
            let mut round = self.table.round.lock().unwrap();
            let number = round.number;
            round.parts[self.replica] = Some(values);
            if round.parts.iter().all(Option::is_some) {
                let parts: Vec<_> = round.parts.iter_mut().filter_map(Option::take).collect();
                round.sums = added(&parts);
                round.number += 1;
                self.table.turned.notify_all();
            }
            let patience = Duration::from_secs(20);
            let (round, waited) = self
                .table
                .turned
                .wait_timeout_while(round, patience, |round| round.number == number)
                .unwrap();
            match waited.timed_out() {
                true => Err(Error::user("a replica does not come")),
                false => round.sums.clone().map_err(Error::user),
            }
        }
    }

    fn added(parts: &[Vec<f64>]) -> Result<Vec<f64>, String> {
        let length = parts[0].len();
        if parts.iter().any(|part| part.len() != length) {
            return Err("the replicas sum different things".to_owned());
        }
        Ok((0..length)
            .map(|i| parts.iter().map(|part| part[i]).sum())
            .collect())
    }

    /// One seat for each replica, at one table.
    pub(crate) fn seats(replicas: usize) -> Vec<Arc<dyn SumOverReplicas>> {
        let table = Arc::new(Table {
            round: Mutex::new(Round {
                number: 0,
                parts: vec![None; replicas],
                sums: Ok(Vec::new()),
            }),
            turned: Condvar::new(),
        });
        (0..replicas)
            .map(|replica| {
                let table = table.clone();
                Arc::new(Seat { table, replica }) as Arc<dyn SumOverReplicas>
            })
            .collect()
    }

    /// The context of a part of the first batch, of `samples` samples from `first_sample`.
    pub(crate) fn part(
        samples: usize,
        first_sample: usize,
        sum: Option<Arc<dyn SumOverReplicas>>,
    ) -> PassContext {
        PassContext {
            seed: 7,
            epoch: 0,
            batch: 0,
            samples,
            first_sample,
            batch_samples: first_sample + samples,
            sum,
        }
    }

    /// Runs `pass` once for each replica, each on its own thread with its part of the batch; what
    /// the passes give, or the message of the panic in one.
    pub(crate) fn on_replicas<T: Send>(
        samples: &[usize],
        synchronized: bool,
        pass: impl Fn(usize, std::ops::Range<usize>) -> T + Sync,
    ) -> Result<Vec<T>, String> {
        let seats = seats(samples.len());
        std::thread::scope(|scope| {
            let mut first = 0;
            let threads: Vec<_> = samples
                .iter()
                .zip(seats)
                .enumerate()
                .map(|(replica, (&samples, seat))| {
                    let rows = first..first + samples;
                    first += samples;
                    let context = part(samples, rows.start, synchronized.then_some(seat));
                    let pass = &pass;
                    scope.spawn(move || within(context, || pass(replica, rows)))
                })
                .collect();
            let joined: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
            let message = |panic: Box<dyn std::any::Any + Send>| match panic.downcast::<String>() {
                Ok(message) => *message,
                Err(_) => "no message".to_owned(),
            };
            joined
                .into_iter()
                .map(|pass| pass.map_err(message))
                .collect()
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, reason = "tests")]
mod tests {
    use super::testing::{on_replicas, part};
    use super::*;

    #[test]
    fn a_context_is_there_within_a_pass_only() {
        assert_eq!(next_dropout(), None);
        within(part(3, 5, None), || {
            let call = next_dropout().unwrap();
            assert_eq!((call.samples, call.first_sample), (3, 5));
            assert_eq!(call.words, [7, 0, 0, 0]);
            within(part(1, 0, None), || {
                assert_eq!(next_dropout().unwrap().words[3], 0);
            });
            assert_eq!(next_dropout().unwrap().words[3], 1);
        });
        assert_eq!(next_dropout(), None);
    }

    #[test]
    fn a_panic_leaves_no_context_behind() {
        let panicked = std::panic::catch_unwind(|| within(part(1, 0, None), || panic!("no")));
        assert!(panicked.is_err());
        assert_eq!(next_dropout(), None);
    }

    #[test]
    fn replicas_meet_only_where_a_layer_was_synchronized() {
        // Only one of them comes; nobody waits for the other.
        on_replicas(&[1, 1], true, |replica, _| {
            if replica == 0 {
                meet().unwrap();
            }
        })
        .unwrap();
    }
}
