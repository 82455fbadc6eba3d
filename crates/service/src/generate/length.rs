//! Draws the length of random replies, in tokens. Source: llm-d-inference-sim
//! `histogram_helper.go`, `dataset.go`.

use vllm_sim_random::DrawRandom;

/// Probabilities of the five ranges of reply lengths below the maximum; all other replies have
/// exactly the maximum length.
const BUCKET_PROBABILITIES: [f64; 5] = [0.20, 0.30, 0.20, 0.05, 0.10];
/// Width of each range of reply lengths if the maximum length is large, in tokens.
const BUCKET_WIDTH_TOKENS: u32 = 20;
/// Mean and standard deviation of the length of replies without a maximum, in tokens.
const FREE_LENGTH_MEAN_AND_SD: (f64, f64) = (40.0, 20.0);

/// Smallest maximum reply length for which none of the five length ranges is empty, in tokens.
const MIN_BUCKETED_MAX_TOKENS: u32 = 7;

/// Draws the length of a reply whose maximum the client set, in tokens.
///
/// With the same random draws, a larger maximum never gives a shorter reply.
pub(super) fn draw_reply_length_up_to_max(max: u32, rng: &mut impl DrawRandom) -> u32 {
    if max < MIN_BUCKETED_MAX_TOKENS {
        return draw_reply_length_up_to_max(MIN_BUCKETED_MAX_TOKENS, rng).min(max);
    }
    let mut drawn = rng.draw_unit_f64();
    for (bucket, share) in BUCKET_PROBABILITIES.iter().enumerate() {
        if drawn < *share {
            let (low, high) = bucket_bounds(bucket as u32, max);
            return rng.draw_u64_between(low.into(), high.max(low).into()) as u32;
        }
        drawn -= share;
    }
    max
}

fn bucket_bounds(bucket: u32, max: u32) -> (u32, u32) {
    if max <= 5 * BUCKET_WIDTH_TOKENS + 1 {
        let width = f64::from(max - 1) / 5.0;
        let start = (width * f64::from(bucket)) as u32 + 1;
        return (start, (width * f64::from(bucket + 1)) as u32);
    }
    match bucket {
        0..=2 => (BUCKET_WIDTH_TOKENS * bucket + 1, BUCKET_WIDTH_TOKENS * (bucket + 1)),
        3 => (3 * BUCKET_WIDTH_TOKENS + 1, max - BUCKET_WIDTH_TOKENS),
        _ => (max - BUCKET_WIDTH_TOKENS + 1, max - 1),
    }
}

/// Draws the length of a reply that only the context limits, in tokens.
pub(super) fn draw_reply_length_without_max(limit: u32, rng: &mut impl DrawRandom) -> u32 {
    if limit < BUCKET_WIDTH_TOKENS {
        return rng.draw_u64_between(1, limit.max(1).into()) as u32;
    }
    loop {
        let drawn = (FREE_LENGTH_MEAN_AND_SD.0
            + FREE_LENGTH_MEAN_AND_SD.1 * rng.draw_standard_normal())
        .round();
        if drawn >= 1.0 && drawn <= f64::from(limit) {
            return drawn as u32;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vllm_sim_random::{RandomStreamPurpose, request_rng};

    #[test]
    fn lengths_stay_within_the_limit_and_reach_it() {
        for max in [1, 2, 6, 7, 50, 101, 102, 500] {
            let mut rng = request_rng(1, max.into(), RandomStreamPurpose::Content);
            let drawn: Vec<_> =
                (0..2000).map(|_| draw_reply_length_up_to_max(max, &mut rng)).collect();
            assert!(drawn.iter().all(|n| (1..=max).contains(n)), "{max}");
            assert!(drawn.contains(&max), "{max}");
        }
    }

    #[test]
    fn a_larger_maximum_makes_no_reply_shorter() {
        for key in 0..500 {
            let lengths: Vec<_> = (1..=300)
                .map(|max| {
                    draw_reply_length_up_to_max(
                        max,
                        &mut request_rng(1, key, RandomStreamPurpose::Length),
                    )
                })
                .collect();
            assert!(lengths.is_sorted(), "{key}: {lengths:?}");
        }
    }

    #[test]
    fn about_fifteen_in_a_hundred_replies_reach_the_limit() {
        let mut rng = request_rng(1, 1, RandomStreamPurpose::Content);
        let full =
            (0..10_000).filter(|_| draw_reply_length_up_to_max(200, &mut rng) == 200).count();
        assert!((1350..1650).contains(&full), "{full}");
    }
}
