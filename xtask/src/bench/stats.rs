//! Medians and percentiles.

/// The smallest sample that at least this share of the samples does not exceed (nearest rank). Sorts; 0 without samples.
pub(crate) fn percentile(samples: &mut [u64], share: f64) -> u64 {
    samples.sort_unstable();
    let rank = (share * samples.len() as f64).ceil() as usize;
    samples.get(rank.saturating_sub(1)).copied().unwrap_or(0)
}

/// The middle value, or the mean of the two in the middle. NaN without values.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => f64::NAN,
        len if len % 2 == 1 => sorted[middle],
        _ => f64::midpoint(sorted[middle - 1], sorted[middle]),
    }
}

#[cfg(test)]
mod tests {
    use super::{median, percentile};

    #[test]
    fn percentiles_are_samples_that_were_taken() {
        let mut samples: Vec<u64> = (1..=1000).rev().collect();
        assert_eq!(percentile(&mut samples, 0.5), 500);
        assert_eq!(percentile(&mut samples, 0.99), 990);
        assert_eq!(percentile(&mut samples, 0.999), 999);
        assert_eq!(percentile(&mut [7], 0.999), 7);
        assert_eq!(percentile(&mut [], 0.5), 0);
    }

    #[test]
    fn the_median_is_not_moved_by_one_outlier() {
        assert_eq!(median(&[1.0, 1000.0, 2.0]), 2.0);
        assert_eq!(median(&[1.0, 3.0]), 2.0);
        assert!(median(&[]).is_nan());
    }
}
