//! Results of a benchmark: medians, minima, maxima and ratios of tasuki and its baseline.

use std::fmt::Write as _;

use serde_json::{Value, json};

/// The rates of tasuki and of its baseline for one quantity, one value of each per round.
pub(crate) struct Comparison {
    pub(crate) what: &'static str,
    /// Description of the baseline.
    pub(crate) limit: String,
    pub(crate) unit: &'static str,
    pub(crate) ours: Vec<f64>,
    pub(crate) baseline: Vec<f64>,
}

impl Comparison {
    pub(crate) fn without_measurements(
        what: &'static str,
        limit: impl Into<String>,
        unit: &'static str,
    ) -> Self {
        Self { what, limit: limit.into(), unit, ours: Vec::new(), baseline: Vec::new() }
    }

    /// Measures tasuki and the baseline `rounds` times. The order alternates, because the first one in a round may find
    /// the machine in a different state.
    pub(crate) async fn measure<E>(
        mut self,
        rounds: u32,
        ours: impl AsyncFn() -> Result<f64, E>,
        baseline: impl AsyncFn() -> Result<f64, E>,
    ) -> Result<Self, E> {
        for round in 0..rounds {
            if round % 2 == 0 {
                self.ours.push(ours().await?);
                self.baseline.push(baseline().await?);
            } else {
                self.baseline.push(baseline().await?);
                self.ours.push(ours().await?);
            }
        }
        Ok(self)
    }

    /// The ratio of tasuki to the baseline for each round: a disturbance in a round affects both.
    fn ratios(&self) -> Vec<f64> {
        self.ours.iter().zip(&self.baseline).map(|(ours, baseline)| ours / baseline).collect()
    }

    fn write_text(&self, text: &mut String) {
        let unit = self.unit;
        for (name, each) in [(self.what, &self.ours), (self.limit.as_str(), &self.baseline)] {
            let [median, min, max] = median_min_max(each);
            push_line(
                text,
                &format!("  {name:<38} {median:>10.0} {unit:<7} {min:>9.0} .. {max:.0}"),
            );
        }
        let [median, min, max] = median_min_max(&self.ratios());
        push_line(
            text,
            &format!("  {:<38} {median:>10.2} {:<7} {min:>9.2} .. {max:.2}", "ratio", ""),
        );
    }

    fn json(&self) -> Value {
        json!({
            "what": self.what,
            "unit": self.unit,
            "limit": self.limit,
            "tasuki": median_min_max_json(&self.ours),
            "bare": median_min_max_json(&self.baseline),
            "ratio": median_min_max_json(&self.ratios()),
        })
    }
}

/// Durations of repeated measurements, in microseconds.
pub(crate) struct LatencySamples {
    pub(crate) what: &'static str,
    pub(crate) micros: Vec<i64>,
}

/// The quantiles that are reported for durations.
const QUANTILES: [(&str, f64); 4] = [("p50", 0.5), ("p95", 0.95), ("p99", 0.99), ("max", 1.0)];

impl LatencySamples {
    fn quantile(&self, share: f64) -> i64 {
        quantile(&self.micros, share)
    }

    pub(crate) fn write_text(&self, text: &mut String) {
        let mut output = format!("  {:<38}", self.what);
        for (name, share) in QUANTILES {
            write!(output, " {name} {:>8.2} ms", self.quantile(share) as f64 / 1_000.0)
                .expect("writing to a string does not fail");
        }
        push_line(text, &output);
    }

    /// Writes the ratio of these durations to those of `over`, for each quantile.
    pub(crate) fn write_ratio(&self, over: &Self, text: &mut String) {
        let mut output = format!("  {:<38}", "ratio");
        for (name, share) in QUANTILES {
            write!(output, " {name} {:>8.2}   ", self.ratio(over, share))
                .expect("writing to a string does not fail");
        }
        push_line(text, output.trim_end());
    }

    pub(crate) fn json(&self) -> Value {
        let mut output = json!({ "what": self.what, "samples": self.micros.len() });
        for (name, share) in QUANTILES {
            output[format!("{name}_us")] = json!(self.quantile(share));
        }
        output
    }

    pub(crate) fn ratio_json(&self, over: &Self) -> Value {
        let mut output = json!({});
        for (name, share) in QUANTILES {
            output[name] = json!(round_to_thousandths(self.ratio(over, share)));
        }
        output
    }

    fn ratio(&self, over: &Self, share: f64) -> f64 {
        self.quantile(share) as f64 / over.quantile(share).max(1) as f64
    }
}

/// The report of a benchmark.
pub(crate) struct BenchReport {
    pub(crate) bench: &'static str,
    pub(crate) database: &'static str,
    /// The parameters of the measurement, in one line.
    pub(crate) heading: String,
    pub(crate) comparisons: Vec<Comparison>,
}

impl BenchReport {
    pub(crate) fn render(&self, as_json: bool) -> String {
        if as_json {
            let comparisons: Vec<Value> = self.comparisons.iter().map(Comparison::json).collect();
            let output = json!({
                "bench": self.bench,
                "database": self.database,
                "measured": self.heading,
                "figures": comparisons,
            });
            return format!("{output:#}\n");
        }
        let mut text = format!("{} on {}: {}\n", self.bench, self.database, self.heading);
        for comparison in &self.comparisons {
            comparison.write_text(&mut text);
        }
        text
    }
}

/// The quantile of `values` at `share` (0 to 1): the smallest value that at least this share does not exceed.
pub(crate) fn quantile(values: &[i64], share: f64) -> i64 {
    let mut values = values.to_vec();
    values.sort_unstable();
    let fixture = (values.len() as f64 * share).ceil() as usize;
    values.get(fixture.saturating_sub(1)).copied().unwrap_or_default()
}

/// Median, minimum and maximum.
fn median_min_max(each: &[f64]) -> [f64; 3] {
    let mut sorted = each.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    let median = match sorted.len() {
        0 => return [0.0; 3],
        even if even % 2 == 0 => f64::midpoint(sorted[middle - 1], sorted[middle]),
        _ => sorted[middle],
    };
    [median, sorted[0], sorted[sorted.len() - 1]]
}

fn median_min_max_json(each: &[f64]) -> Value {
    let [median, min, max] = median_min_max(each).map(round_to_thousandths);
    let each: Vec<f64> = each.iter().copied().map(round_to_thousandths).collect();
    json!({ "median": median, "min": min, "max": max, "each": each })
}

/// Rounds to three decimal places; more would be noise.
fn round_to_thousandths(value: f64) -> f64 {
    (value * 1_000.0).round() / 1_000.0
}

fn push_line(text: &mut String, output: &str) {
    text.push_str(output);
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ratio_is_the_median_of_the_ratios_of_all_rounds() {
        let (ours, baseline) = (vec![10.0, 40.0, 30.0], vec![20.0, 40.0, 120.0]);
        let comparison = Comparison {
            ours,
            baseline,
            ..Comparison::without_measurements("drain", "bare", "runs/s")
        };
        assert_eq!(median_min_max(&comparison.ratios()), [0.5, 0.25, 1.0]);
        assert_eq!(comparison.json()["tasuki"]["median"], 30.0);
    }

    #[test]
    fn medians_and_quantiles_of_few_values() {
        assert_eq!(median_min_max(&[]), [0.0; 3]);
        assert_eq!(median_min_max(&[3.0, 1.0]), [2.0, 1.0, 3.0]);
        assert_eq!(quantile(&[], 0.5), 0);
        let values: Vec<i64> = (1..=100).rev().collect();
        assert_eq!([0.5, 0.99, 1.0].map(|share| quantile(&values, share)), [50, 99, 100]);
    }
}
