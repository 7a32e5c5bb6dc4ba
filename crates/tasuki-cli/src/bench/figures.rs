//! What was measured, beside the limit that was measured with it: medians, spreads, ratios.

use std::fmt::Write as _;

use serde_json::{Value, json};

/// One quantity, ours and its limit, a figure of each for every round.
pub(crate) struct Pair {
    pub(crate) what: &'static str,
    /// What the limit is made of.
    pub(crate) limit: String,
    pub(crate) unit: &'static str,
    pub(crate) ours: Vec<f64>,
    pub(crate) bare: Vec<f64>,
}

impl Pair {
    pub(crate) fn new(what: &'static str, limit: impl Into<String>, unit: &'static str) -> Self {
        Self { what, limit: limit.into(), unit, ours: Vec::new(), bare: Vec::new() }
    }

    /// Measures both so many times. Whoever is first finds the machine as it was: each is, in turns.
    pub(crate) async fn measure<E>(
        mut self,
        rounds: u32,
        ours: impl AsyncFn() -> Result<f64, E>,
        bare: impl AsyncFn() -> Result<f64, E>,
    ) -> Result<Self, E> {
        for round in 0..rounds {
            if round % 2 == 0 {
                self.ours.push(ours().await?);
                self.bare.push(bare().await?);
            } else {
                self.bare.push(bare().await?);
                self.ours.push(ours().await?);
            }
        }
        Ok(self)
    }

    /// Ours over the limit, round by round: what disturbed a round disturbed both.
    fn ratios(&self) -> Vec<f64> {
        self.ours.iter().zip(&self.bare).map(|(ours, bare)| ours / bare).collect()
    }

    fn write(&self, text: &mut String) {
        let unit = self.unit;
        for (name, each) in [(self.what, &self.ours), (self.limit.as_str(), &self.bare)] {
            let [median, min, max] = spread(each);
            line(text, &format!("  {name:<38} {median:>10.0} {unit:<7} {min:>9.0} .. {max:.0}"));
        }
        let [median, min, max] = spread(&self.ratios());
        line(text, &format!("  {:<38} {median:>10.2} {:<7} {min:>9.2} .. {max:.2}", "ratio", ""));
    }

    fn json(&self) -> Value {
        json!({
            "what": self.what,
            "unit": self.unit,
            "limit": self.limit,
            "tasuki": spread_json(&self.ours),
            "bare": spread_json(&self.bare),
            "ratio": spread_json(&self.ratios()),
        })
    }
}

/// How long something took, many times, in microseconds.
pub(crate) struct Times {
    pub(crate) what: &'static str,
    pub(crate) micros: Vec<i64>,
}

/// The quantiles that are told of times.
const QUANTILES: [(&str, f64); 4] = [("p50", 0.5), ("p95", 0.95), ("p99", 0.99), ("max", 1.0)];

impl Times {
    fn at(&self, share: f64) -> i64 {
        quantile(&self.micros, share)
    }

    pub(crate) fn write(&self, text: &mut String) {
        let mut told = format!("  {:<38}", self.what);
        for (name, share) in QUANTILES {
            write!(told, " {name} {:>8.2} ms", self.at(share) as f64 / 1_000.0)
                .expect("a string takes all");
        }
        line(text, &told);
    }

    /// These over those, quantile by quantile.
    pub(crate) fn write_ratio(&self, over: &Self, text: &mut String) {
        let mut told = format!("  {:<38}", "ratio");
        for (name, share) in QUANTILES {
            write!(told, " {name} {:>8.2}   ", self.ratio(over, share))
                .expect("a string takes all");
        }
        line(text, told.trim_end());
    }

    pub(crate) fn json(&self) -> Value {
        let mut told = json!({ "what": self.what, "samples": self.micros.len() });
        for (name, share) in QUANTILES {
            told[format!("{name}_us")] = json!(self.at(share));
        }
        told
    }

    pub(crate) fn ratio_json(&self, over: &Self) -> Value {
        let mut told = json!({});
        for (name, share) in QUANTILES {
            told[name] = json!(rounded(self.ratio(over, share)));
        }
        told
    }

    fn ratio(&self, over: &Self, share: f64) -> f64 {
        self.at(share) as f64 / over.at(share).max(1) as f64
    }
}

/// What a bench has to say.
pub(crate) struct Report {
    pub(crate) bench: &'static str,
    pub(crate) database: &'static str,
    /// What was measured, in a line.
    pub(crate) heading: String,
    pub(crate) pairs: Vec<Pair>,
}

impl Report {
    pub(crate) fn told(&self, as_json: bool) -> String {
        if as_json {
            let pairs: Vec<Value> = self.pairs.iter().map(Pair::json).collect();
            let told = json!({
                "bench": self.bench,
                "database": self.database,
                "measured": self.heading,
                "figures": pairs,
            });
            return format!("{told:#}\n");
        }
        let mut text = format!("{} on {}: {}\n", self.bench, self.database, self.heading);
        for pair in &self.pairs {
            pair.write(&mut text);
        }
        text
    }
}

/// The smallest value that so large a share of them does not exceed.
pub(crate) fn quantile(values: &[i64], share: f64) -> i64 {
    let mut values = values.to_vec();
    values.sort_unstable();
    let place = (values.len() as f64 * share).ceil() as usize;
    values.get(place.saturating_sub(1)).copied().unwrap_or_default()
}

/// Median, least and most.
fn spread(each: &[f64]) -> [f64; 3] {
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

fn spread_json(each: &[f64]) -> Value {
    let [median, min, max] = spread(each).map(rounded);
    let each: Vec<f64> = each.iter().copied().map(rounded).collect();
    json!({ "median": median, "min": min, "max": max, "each": each })
}

/// To three places: more would be noise.
fn rounded(value: f64) -> f64 {
    (value * 1_000.0).round() / 1_000.0
}

fn line(text: &mut String, told: &str) {
    text.push_str(told);
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_is_the_median_of_the_rounds_ratios() {
        let (ours, bare) = (vec![10.0, 40.0, 30.0], vec![20.0, 40.0, 120.0]);
        let pair = Pair { ours, bare, ..Pair::new("drain", "bare", "runs/s") };
        assert_eq!(spread(&pair.ratios()), [0.5, 0.25, 1.0]);
        assert_eq!(pair.json()["tasuki"]["median"], 30.0);
    }

    #[test]
    fn spreads_and_quantiles_of_few_values() {
        assert_eq!(spread(&[]), [0.0; 3]);
        assert_eq!(spread(&[3.0, 1.0]), [2.0, 1.0, 3.0]);
        assert_eq!(quantile(&[], 0.5), 0);
        let values: Vec<i64> = (1..=100).rev().collect();
        assert_eq!([0.5, 0.99, 1.0].map(|share| quantile(&values, share)), [50, 99, 100]);
    }
}
