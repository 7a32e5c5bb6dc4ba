//! How a cluster behaves: typed values with defaults, limits and rules between them.
//!
//! Settings are rows in the database, changed from pages, REST or CLI. Whoever changes them asks
//! [`Settings::with`], which answers with all that is wrong or with settings that are right as a
//! whole; there is no other way to change them.

mod definitions;
mod reference;
mod rules;
mod value;

use std::fmt;
use std::time::Duration;

pub use definitions::{Definition, Settings};
pub use reference::markdown;
pub use rules::{BrokenRule, RULES, Rule};
pub use value::Slots;

use crate::did_you_mean::nearest;
use crate::{Invalid, Language};

impl Settings {
    /// These settings with some of them changed, checked one by one and then together. On any
    /// problem nothing is changed and every problem is told.
    ///
    /// ```
    /// use tasuki_core::Settings;
    ///
    /// let hurried = [("heartbeat_interval", "100ms"), ("heartbeat_ttl", "300ms")];
    /// assert!(Settings::default().with(&hurried).is_ok());
    ///
    /// let problems = Settings::default().with(&[("heartbeat_ttl", "2s")]).unwrap_err();
    /// assert_eq!(
    ///     problems[0].to_string(),
    ///     "heartbeat_ttl (2s) must be at least three times heartbeat_interval (1s)"
    /// );
    /// ```
    pub fn with<N: AsRef<str>, V: AsRef<str>>(
        &self,
        changes: &[(N, V)],
    ) -> Result<Self, Vec<Problem>> {
        let mut changed = self.clone();
        let problems: Vec<Problem> = changes
            .iter()
            .filter_map(|(name, typed)| changed.set(name.as_ref(), typed.as_ref()).err())
            .collect();
        if !problems.is_empty() {
            return Err(problems);
        }
        match rules::broken(&changed) {
            broken if broken.is_empty() => Ok(changed),
            broken => Err(broken.into_iter().map(Problem::Rule).collect()),
        }
    }

    /// When a worker that cannot renew sends TERM to its running work, counted from the renewal
    /// that last succeeded.
    pub fn term_after(&self) -> Duration {
        self.lease_ttl * 2 / 3
    }

    /// When it sends KILL: before the database lets anyone take over.
    pub fn kill_after(&self) -> Duration {
        self.lease_ttl.saturating_sub(self.kill_margin)
    }
}

/// What is wrong with a change of settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Problem {
    /// There is no such setting.
    Unknown {
        /// What was typed.
        name: String,
        /// What was probably meant.
        meant: Option<&'static str>,
    },
    /// The value will not do.
    Value(Invalid),
    /// The values do not agree.
    Rule(BrokenRule),
}

impl Problem {
    fn unknown(name: &str) -> Self {
        let names = Settings::definitions().into_iter().map(|definition| definition.name);
        Self::Unknown { name: name.to_owned(), meant: nearest(name, names) }
    }

    /// What is wrong, in words. Refused values are told in English only.
    pub fn message(&self, language: Language) -> String {
        match (self, language) {
            (Self::Rule(broken), language) => broken.message(language).to_owned(),
            (Self::Value(invalid), _) => invalid.to_string(),
            (Self::Unknown { name, meant }, _) => {
                let meant = meant.map_or(String::new(), |meant| format!("; did you mean {meant}?"));
                format!("no setting is called {name:?}{meant}")
            }
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message(Language::English))
    }
}

impl std::error::Error for Problem {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_right_as_a_whole() {
        let nothing: [(&str, &str); 0] = [];
        assert_eq!(Settings::default().with(&nothing), Ok(Settings::default()));
    }

    #[test]
    fn what_is_shown_reads_back() {
        let shown: Vec<(&str, String)> = Settings::definitions()
            .iter()
            .map(|one| (one.name, Settings::default().get(one.name).unwrap()))
            .collect();
        assert_eq!(Settings::default().with(&shown), Ok(Settings::default()));
    }

    #[test]
    fn every_setting_has_help_limits_and_a_default_within_them() {
        for one in Settings::definitions() {
            assert!(one.english.ends_with('.') && one.english.len() > 20, "{}", one.name);
            assert!(one.japanese.ends_with('。'), "{}", one.name);
            for limit in [&one.default, &one.min, &one.max] {
                let mut settings = Settings::default();
                assert_eq!(settings.set(one.name, limit), Ok(()), "{} = {limit}", one.name);
            }
        }
    }

    #[test]
    fn limits_are_told() {
        let refused = Settings::default().with(&[("leader_tick", "0s")]).unwrap_err();
        assert_eq!(
            refused[0].to_string(),
            "leader_tick: found \"0s\", expected a duration such as 300ms, 1.5s, 5m, 2h or 7d, from 10ms to 1m"
        );
        let refused = Settings::default().with(&[("recovery_enabled", "maybe")]).unwrap_err();
        assert_eq!(
            refused[0].to_string(),
            "recovery_enabled: found \"maybe\", expected true or false"
        );
    }

    #[test]
    fn all_problems_are_told_at_once_and_nothing_is_changed() {
        let settings = Settings::default();
        let changes = [("leader_tik", "1s"), ("lease_ttl", "soon"), ("max_releases", "5")];
        let problems = settings.with(&changes).unwrap_err();
        let told: Vec<String> = problems.iter().map(ToString::to_string).collect();
        assert_eq!(told[0], "no setting is called \"leader_tik\"; did you mean leader_tick?");
        assert!(told[1].starts_with("lease_ttl: found \"soon\", expected a duration"));
        assert_eq!((told.len(), settings), (2, Settings::default()));
        assert_eq!(Problem::unknown("qqqqqq").to_string(), "no setting is called \"qqqqqq\"");
    }

    #[test]
    fn a_change_that_is_only_right_together_is_right() {
        let together = [("lease_ttl", "60s"), ("lease_renew", "10s"), ("outage_tolerance", "30s")];
        assert!(Settings::default().with(&together).is_ok());
        assert!(Settings::default().with(&together[1..]).is_err());
    }

    /// Every duration can be made small enough for a test that wants to see leases lapse.
    #[test]
    fn a_cluster_can_be_hurried() {
        let hurried = [
            ("leader_tick", "20ms"),
            ("assign_ahead", "100ms"),
            ("leader_renew", "50ms"),
            ("leader_ttl", "200ms"),
            ("leader_margin", "20ms"),
            ("leader_stale", "100ms"),
            ("subleader_check", "20ms"),
            ("heartbeat_interval", "50ms"),
            ("heartbeat_ttl", "200ms"),
            ("worker_detach_grace", "100ms"),
            ("reassign_after", "100ms"),
            ("lease_renew", "50ms"),
            ("lease_ttl", "300ms"),
            ("outage_tolerance", "100ms"),
            ("kill_margin", "50ms"),
            ("steal_grace", "10ms"),
            ("continuation_retry_interval", "10ms"),
            ("skip_late_after", "500ms"),
            ("retry_backoff", "10ms"),
            ("retry_backoff_cap", "40ms"),
            ("recovery_interval", "20ms"),
            ("stop_grace", "50ms"),
        ];
        let settings = Settings::default().with(&hurried).unwrap();
        assert_eq!(settings.term_after(), Duration::from_millis(200));
        assert_eq!(settings.kill_after(), Duration::from_millis(250));
    }
}
