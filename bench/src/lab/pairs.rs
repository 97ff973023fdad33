//! The ratio of two sides that ran in pairs, with its 95 % confidence interval.
//!
//! A pair is one run of each side, one soon after the other, so that what the machine does in the
//! meantime meets both. Ratios are averaged by their logarithms: half as fast and twice as fast
//! cancel out. The interval is Student's.

/// Two-sided 95 % quantiles of Student's distribution, for 1 to 30 degrees of freedom.
const STUDENT: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
];
/// Of the normal distribution, for more of them.
const NORMAL: f64 = 1.96;

/// A mean ratio, and where it lies with a confidence of 95 %.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct RatioInterval {
    pub(crate) mean: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
}

/// The ratio of the second figure of each pair to the first. `None` for less than two pairs, and
/// for a figure that is not positive.
pub(crate) fn ratio_interval(pairs: &[(f64, f64)]) -> Option<RatioInterval> {
    if pairs.len() < 2 || pairs.iter().any(|(of, by)| *of <= 0.0 || *by <= 0.0) {
        return None;
    }
    let logs: Vec<f64> = pairs.iter().map(|(of, by)| (by / of).ln()).collect();
    let count = logs.len() as f64;
    let mean = logs.iter().sum::<f64>() / count;
    let variance = logs.iter().map(|log| (log - mean).powi(2)).sum::<f64>() / (count - 1.0);
    let student = STUDENT.get(logs.len() - 2).copied().unwrap_or(NORMAL);
    let half = student * (variance / count).sqrt();
    Some(RatioInterval { mean: mean.exp(), low: (mean - half).exp(), high: (mean + half).exp() })
}

/// By how much `value` exceeds `base`, as a part of `base`; 0 if there is no `base`.
pub(crate) fn excess(value: f64, base: f64) -> f64 {
    if base == 0.0 { 0.0 } else { value / base - 1.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(one: f64, other: f64) {
        assert!((one - other).abs() < 1e-4, "{one} is not {other}");
    }

    #[test]
    fn pairs_that_agree_leave_no_doubt() {
        let interval = ratio_interval(&[(100.0, 90.0), (200.0, 180.0), (50.0, 45.0)]).unwrap();
        [interval.mean, interval.low, interval.high].into_iter().for_each(|bound| near(bound, 0.9));
    }

    #[test]
    fn half_and_double_cancel_out() {
        let interval = ratio_interval(&[(1.0, 2.0), (2.0, 1.0)]).unwrap();
        near(interval.mean, 1.0);
        // ln 2 is the deviation's part: 12.706 * sqrt(2) * ln 2 / sqrt(2).
        near(interval.high.ln(), 12.706 * std::f64::consts::LN_2);
        near(interval.low * interval.high, 1.0);
    }

    #[test]
    fn ten_pairs_have_the_interval_of_a_textbook() {
        // Logarithms of 1 to 10 per mille: mean 0.0055, deviation 0.00302765.
        let pairs: Vec<(f64, f64)> = (1..=10).map(|i| (1.0, (f64::from(i) / 1e3).exp())).collect();
        let interval = ratio_interval(&pairs).unwrap();
        near(interval.mean.ln() * 1e3, 5.5);
        near(interval.low.ln() * 1e3, 5.5 - 2.262 * 3.027_65 / 10_f64.sqrt());
    }

    #[test]
    fn one_pair_and_a_failed_run_have_no_interval() {
        assert_eq!(ratio_interval(&[(1.0, 1.0)]), None);
        assert_eq!(ratio_interval(&[(1.0, 1.0), (1.0, 0.0)]), None);
    }

    #[test]
    fn an_excess_is_a_part_of_the_base() {
        near(excess(105.0, 100.0), 0.05);
        near(excess(90.0, 100.0), -0.1);
        near(excess(5.0, 0.0), 0.0);
    }
}
