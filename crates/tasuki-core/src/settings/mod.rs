//! The settings of a cluster: typed values with defaults, limits, and rules between them.
//!
//! Settings are rows in the database that users change with pages, REST or CLI. Every change goes through
//! [`Settings::with_changes`], which returns either settings that are valid as a whole, or all problems.

mod definitions;
mod reference_page;
mod rules_between_settings;
mod value;

use std::fmt;
use std::time::Duration;

pub use definitions::{SettingDefinition, Settings};
pub use reference_page::reference_markdown;
pub use rules_between_settings::{BrokenRule, RULES, SettingsRule};
pub use value::SlotSetting;

use crate::did_you_mean::did_you_mean;
use crate::{InvalidInput, Language};

impl Settings {
    /// Returns these settings with some of them changed. Each value is checked, then the rules between the
    /// values. If there are problems, it returns all of them.
    ///
    /// ```
    /// use tasuki_core::Settings;
    ///
    /// let faster = [("heartbeat_interval", "100ms"), ("heartbeat_ttl", "300ms")];
    /// assert!(Settings::default().with_changes(&faster).is_ok());
    ///
    /// let problems = Settings::default().with_changes(&[("heartbeat_ttl", "2s")]).unwrap_err();
    /// assert_eq!(
    ///     problems[0].to_string(),
    ///     "heartbeat_ttl (2s) must be at least three times heartbeat_interval (1s)"
    /// );
    /// ```
    pub fn with_changes<N: AsRef<str>, V: AsRef<str>>(
        &self,
        changes: &[(N, V)],
    ) -> Result<Self, Vec<SettingsProblem>> {
        let mut changed = self.clone();
        let problems: Vec<SettingsProblem> = changes
            .iter()
            .filter_map(|(name, typed)| changed.set(name.as_ref(), typed.as_ref()).err())
            .collect();
        if !problems.is_empty() {
            return Err(problems);
        }
        match rules_between_settings::find_broken_rules(&changed) {
            broken if broken.is_empty() => Ok(changed),
            broken => Err(broken.into_iter().map(SettingsProblem::Rule).collect()),
        }
    }

    /// The time after the last successful renewal at which a worker that cannot renew its leases sends
    /// TERM to the processes of its runs.
    pub fn sigterm_after_last_renewal(&self) -> Duration {
        self.lease_ttl * 2 / 3
    }

    /// The time after the last successful renewal at which it sends KILL. It is before the end of the
    /// lease, so that no other worker can recover the runs while the processes still exist.
    pub fn sigkill_after_last_renewal(&self) -> Duration {
        self.lease_ttl.saturating_sub(self.kill_margin)
    }
}

/// A problem of a change of settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SettingsProblem {
    /// No setting has this name.
    Unknown {
        /// The name as the user typed it.
        name: String,
        /// A setting with a similar name.
        suggestion: Option<&'static str>,
    },
    /// The value is invalid.
    Value(InvalidInput),
    /// The values break a rule between settings.
    Rule(BrokenRule),
}

impl SettingsProblem {
    fn unknown(name: &str) -> Self {
        let names = Settings::definitions().into_iter().map(|definition| definition.name);
        Self::Unknown { name: name.to_owned(), suggestion: did_you_mean(name, names) }
    }

    /// The message for users. Messages about invalid values are in English only.
    pub fn message(&self, language: Language) -> String {
        match (self, language) {
            (Self::Rule(broken), language) => broken.message(language).to_owned(),
            (Self::Value(invalid), _) => invalid.to_string(),
            (Self::Unknown { name, suggestion: meant }, _) => {
                let meant = meant.map_or(String::new(), |meant| format!("; did you mean {meant}?"));
                format!("no setting is named {name:?}{meant}")
            }
        }
    }
}

impl fmt::Display for SettingsProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message(Language::English))
    }
}

impl std::error::Error for SettingsProblem {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_valid_together() {
        let nothing: [(&str, &str); 0] = [];
        assert_eq!(Settings::default().with_changes(&nothing), Ok(Settings::default()));
    }

    #[test]
    fn formatted_values_parse_back() {
        let shown: Vec<(&str, String)> = Settings::definitions()
            .iter()
            .map(|setting| {
                (setting.name, Settings::default().find_value_text(setting.name).unwrap())
            })
            .collect();
        assert_eq!(Settings::default().with_changes(&shown), Ok(Settings::default()));
    }

    #[test]
    fn every_setting_has_help_limits_and_a_default_within_them() {
        for setting in Settings::definitions() {
            assert!(
                setting.english.ends_with('.') && setting.english.len() > 20,
                "{}",
                setting.name
            );
            assert!(setting.japanese.ends_with('。'), "{}", setting.name);
            for limit in [&setting.default, &setting.min, &setting.max] {
                let mut settings = Settings::default();
                assert_eq!(settings.set(setting.name, limit), Ok(()), "{} = {limit}", setting.name);
            }
        }
    }

    #[test]
    fn an_invalid_value_is_a_problem_that_names_the_limits() {
        let problems = Settings::default().with_changes(&[("leader_tick", "0s")]).unwrap_err();
        assert_eq!(
            problems[0].to_string(),
            "leader_tick: found \"0s\", expected a duration such as 300ms, 1.5s, 5m, 2h or 7d, from 10ms to 1m"
        );
        let problems =
            Settings::default().with_changes(&[("recovery_enabled", "maybe")]).unwrap_err();
        assert_eq!(
            problems[0].to_string(),
            "recovery_enabled: found \"maybe\", expected true or false"
        );
    }

    #[test]
    fn all_problems_are_returned_and_nothing_is_changed() {
        let settings = Settings::default();
        let changes = [("leader_tik", "1s"), ("lease_ttl", "soon"), ("max_releases", "5")];
        let problems = settings.with_changes(&changes).unwrap_err();
        let messages: Vec<String> = problems.iter().map(ToString::to_string).collect();
        assert_eq!(messages[0], "no setting is named \"leader_tik\"; did you mean leader_tick?");
        assert!(messages[1].starts_with("lease_ttl: found \"soon\", expected a duration"));
        assert_eq!((messages.len(), settings), (2, Settings::default()));
        assert_eq!(
            SettingsProblem::unknown("qqqqqq").to_string(),
            "no setting is named \"qqqqqq\""
        );
    }

    #[test]
    fn changes_that_are_only_valid_together_are_accepted() {
        let together = [("lease_ttl", "60s"), ("lease_renew", "10s"), ("outage_tolerance", "30s")];
        assert!(Settings::default().with_changes(&together).is_ok());
        assert!(Settings::default().with_changes(&together[1..]).is_err());
    }

    /// Every duration can be set to a small value, for tests in which leases expire.
    #[test]
    fn all_durations_can_be_short() {
        let short = [
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
        let settings = Settings::default().with_changes(&short).unwrap();
        assert_eq!(settings.sigterm_after_last_renewal(), Duration::from_millis(200));
        assert_eq!(settings.sigkill_after_last_renewal(), Duration::from_millis(250));
    }
}
