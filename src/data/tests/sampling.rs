//! The samplers that ship.

use super::*;
use crate::{ErrorKind, Result};

fn request(len: usize, batch_size: usize, epoch: u64) -> PlanRequest {
    PlanRequest {
        seed: 42,
        epoch,
        ..PlanRequest::new(len, batch_size)
    }
}

fn batches(plan: &Plan) -> Vec<&[usize]> {
    (0..plan.num_batches())
        .map(|index| plan.batch(index).unwrap())
        .collect()
}

fn sorted(values: &[usize]) -> Vec<usize> {
    let mut values = values.to_vec();
    values.sort_unstable();
    values
}

fn message(plan: Result<Plan>) -> String {
    plan.unwrap_err().to_string()
}

#[test]
fn batches_of_any_size_are_cut_where_they_end() {
    let plan = Plan::batches([vec![4, 1], vec![3]]);
    assert_eq!(batches(&plan), [&[4, 1][..], &[3]]);
    assert_eq!((plan.order(), plan.batch(2)), (&[4, 1, 3][..], None));
    assert!(plan.check(&request(5, 1, 0)).is_ok());
    let with_empty = Plan::batches([vec![0], vec![]]);
    assert_eq!(
        with_empty.check(&request(5, 1, 0)).unwrap_err().to_string(),
        "the sampler gave no sample for batch 1; every batch needs at least one"
    );
    assert!(Plan::batches([]).check(&request(5, 1, 0)).is_err());
}

#[test]
fn a_plan_of_other_batches_goes_on_at_its_boundaries_only() {
    let loader = loader(4).batch_size(2).sampler(TokenBudget::new([1; 4], 2));
    let spec = |done| spec().start_batch(1).start_sample(done);
    assert_eq!(values(&loader, spec(2)).len(), 1);
    let error = loader.iter(spec(1)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
}

#[test]
fn a_subset_is_taken_as_given_or_shuffled() {
    let subset = Subset::new([7, 3, 5, 1]);
    assert_eq!(
        subset.plan(&request(8, 3, 0)).unwrap().order(),
        [7, 3, 5, 1]
    );
    let shuffled = subset.shuffled();
    let orders: Vec<Vec<usize>> = (0..8)
        .map(|epoch| {
            shuffled
                .plan(&request(8, 3, epoch))
                .unwrap()
                .order()
                .to_vec()
        })
        .collect();
    assert!(orders.iter().all(|order| sorted(order) == [1, 3, 5, 7]));
    assert!(distinct(&orders) > 1);
    let ordered = shuffled.without_shuffle().unwrap();
    assert_eq!(
        ordered.plan(&request(8, 3, 1)).unwrap().order(),
        [7, 3, 5, 1]
    );
    assert!(Subset::new([]).plan(&request(8, 3, 0)).is_err());
}

#[test]
fn weighted_draws_follow_the_weights() {
    let weights = [0.0, 1.0, 2.0, 0.0, 5.0, 0.0];
    let sampler = Weighted::new(weights).num_samples(80_000);
    let plan = sampler.plan(&request(6, 100, 0)).unwrap();
    let mut counts = [0.0; 6];
    for &index in plan.order() {
        counts[index] += 1.0;
    }
    for (count, weight) in counts.into_iter().zip(weights) {
        let p = weight / 8.0;
        // Five standard deviations of a binomial count.
        let tolerance = 5.0 * (80_000.0 * p * (1.0 - p)).sqrt();
        assert!((count - 80_000.0 * p).abs() <= tolerance, "{counts:?}");
    }
    assert_eq!(plan, sampler.plan(&request(6, 100, 0)).unwrap());
    assert_ne!(plan, sampler.plan(&request(6, 100, 1)).unwrap());
}

#[test]
fn without_replacement_every_sample_comes_once_and_heavy_ones_first() {
    let sampler = Weighted::new([1.0, 0.0, 1e-3, 1e6]).num_samples(3);
    let sampler = sampler.without_replacement();
    let mut heavy_first = 0;
    for epoch in 0..100 {
        let plan = sampler.plan(&request(4, 2, epoch)).unwrap();
        assert_eq!(sorted(plan.order()), [0, 2, 3]);
        heavy_first += usize::from(plan.order()[0] == 3);
    }
    assert_eq!(heavy_first, 100);
    // One weight is all of it.
    let one = Weighted::new([0.0, 0.1])
        .num_samples(1)
        .without_replacement();
    assert_eq!(one.plan(&request(2, 1, 0)).unwrap().order(), [1]);
}

#[test]
fn wrong_weights_are_named() {
    let plan = |sampler: Weighted| message(sampler.plan(&request(3, 1, 0)));
    assert_eq!(
        plan(Weighted::new([1.0; 2])),
        "there are 2 weights for a data set of 3 samples; give one for each"
    );
    for (weight, shown) in [(f64::NAN, "NaN"), (f64::INFINITY, "inf"), (-1.0, "-1")] {
        assert_eq!(
            plan(Weighted::new([1.0, weight, 1.0])),
            format!("the weight of sample 1 is {shown}; weights are finite and not negative")
        );
    }
    assert_eq!(
        plan(Weighted::new([0.0; 3])),
        "the weights add up to 0; their sum must be above 0 and finite"
    );
    assert!(plan(Weighted::new([f64::MAX; 3])).contains("add up to inf"));
    assert!(plan(Weighted::new([1.0; 3]).num_samples(0)).contains("`num_samples` is 0"));
    let too_many = Weighted::new([1.0, 0.0, 1.0]).without_replacement();
    assert!(plan(too_many).contains("only the 2 samples"));
}

#[test]
fn bucketed_batches_hold_similar_lengths() {
    let lengths: Vec<usize> = (0..103).map(|i| i * 37 % 101).collect();
    let sampler = LengthBucketed::new(lengths.clone());
    let plan = sampler.plan(&request(103, 10, 0)).unwrap();
    assert_eq!(sorted(plan.order()), (0..103).collect::<Vec<_>>());
    let batches = batches(&plan);
    let sizes: Vec<usize> = batches.iter().map(|batch| batch.len()).collect();
    assert_eq!(sizes, [10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 3]);
    // All 103 samples are one pool: batches are neighbours in length, 0 to 100, and no wider.
    let mut firsts = Vec::new();
    for batch in &batches {
        let of: Vec<usize> = batch.iter().map(|&sample| lengths[sample]).collect();
        assert!(of.is_sorted_by(|a, b| a >= b) && of[0] - of[of.len() - 1] <= 10);
        firsts.push(of[0]);
    }
    assert!(
        !firsts.is_sorted_by(|a, b| a >= b),
        "the batches are shuffled"
    );
    assert_ne!(plan, sampler.plan(&request(103, 10, 1)).unwrap());

    let mut dropping = request(103, 10, 0);
    dropping.drop_last = true;
    assert_eq!(sampler.plan(&dropping).unwrap().num_batches(), 10);

    let fixed = sampler.without_shuffle().unwrap();
    let plan = fixed.plan(&request(103, 10, 0)).unwrap();
    assert_eq!(plan, fixed.plan(&request(103, 10, 1)).unwrap());
    assert!(plan.order().is_sorted_by(|&a, &b| lengths[a] >= lengths[b]));
}

#[test]
fn a_pool_of_one_batch_is_a_plain_shuffle() {
    let sampler = LengthBucketed::new(0..12).pool_batches(1);
    let plan = sampler.plan(&request(12, 4, 0)).unwrap();
    let random = Random.plan(&request(12, 4, 0)).unwrap();
    let sets =
        |plan: &Plan| -> BTreeSet<Vec<usize>> { batches(plan).into_iter().map(sorted).collect() };
    assert_eq!(sets(&plan), sets(&random));
}

#[test]
fn no_batch_costs_more_than_the_budget() {
    let lengths: Vec<usize> = (0..200).map(|i| 1 + i * i % 61).collect();
    for budget in [61, 100, 250, 100_000] {
        for padded in [true, false] {
            let sampler = TokenBudget::new(lengths.clone(), budget).pool_samples(64);
            let sampler = if padded { sampler } else { sampler.unpadded() };
            for epoch in 0..3 {
                let plan = sampler.plan(&request(200, 1, epoch)).unwrap();
                assert_eq!(sorted(plan.order()), (0..200).collect::<Vec<_>>());
                for batch in batches(&plan) {
                    let of = || batch.iter().map(|&sample| lengths[sample]);
                    let cost = if padded {
                        of().max().unwrap() * batch.len()
                    } else {
                        of().sum()
                    };
                    assert!(cost <= budget, "{cost} > {budget}");
                }
            }
        }
    }
    let one = TokenBudget::new(lengths, 100_000).plan(&request(200, 1, 0));
    assert_eq!(one.unwrap().num_batches(), 1);
}

#[test]
fn the_number_of_batches_is_that_of_the_plan() {
    let loader = loader(4).sampler(TokenBudget::new([10, 6, 5, 2], 12));
    assert_eq!(loader.num_batches(0, 0).unwrap(), Some(3));
    let seen = values(&loader, spec());
    assert_eq!(seen.len(), 3);
    assert_eq!(sorted(&seen.concat()), [0, 1, 2, 3]);
}

#[test]
fn wrong_lengths_are_named() {
    let plan = |sampler: &dyn Sampler| message(sampler.plan(&request(3, 1, 0)));
    assert_eq!(
        plan(&TokenBudget::new([5, 13, 2], 12)),
        "sample 1 has 13 tokens, more than the budget of 12 for a whole batch; raise `max_tokens`, \
         or shorten or leave out the sample"
    );
    let expected = "there are 2 lengths for a data set of 3 samples; give one for each";
    assert_eq!(plan(&TokenBudget::new([5, 2], 12)), expected);
    assert_eq!(plan(&LengthBucketed::new([5, 2])), expected);
    assert!(plan(&TokenBudget::new([1; 3], 12).pool_samples(0)).contains("`pool_samples` is 0"));
    assert!(plan(&LengthBucketed::new([1; 3]).pool_batches(0)).contains("`pool_batches` is 0"));
}
