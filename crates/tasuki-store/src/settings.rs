//! Cluster settings, stored as rows. Several settings are validated and changed together.

use serde_json::{Map, Value, json};
use tasuki_core::Settings;

use crate::audit::{self, AuditAction, AuditActor};
use crate::db::sql::{Sql, sql};
use crate::db::{Row, params};
use crate::{Error, Store};

static LIST_WITH_VERSION: Sql = sql!("setting/list_with_version");
static INCREMENT_VERSION: Sql = sql!("setting/increment_version");
static UPDATE: Sql = sql!("setting/update");
static INSERT: Sql = sql!("setting/insert");

/// The current settings with their version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CurrentSettings {
    /// Incremented by every change. A change must pass the version that it is based on.
    pub version: i64,
    /// All values: the stored ones, and the defaults of the others.
    pub settings: Settings,
}

/// The result of [`Store::change_settings`].
#[must_use]
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SettingsChangeResult {
    /// The change took effect; these are the new settings.
    Applied(CurrentSettings),
    /// The settings have another version than expected. Nothing was written; these are the current settings.
    Lost(CurrentSettings),
}

impl CurrentSettings {
    fn from_rows(rows: &[Row]) -> Result<Self, Error> {
        let first =
            rows.first().ok_or_else(|| Error::broken("the settings have no version row"))?;
        let mut stored = Vec::with_capacity(rows.len());
        for row in rows {
            if let Some(name) = row.opt_text("name")? {
                stored.push((name, row.text("value")?));
            }
        }
        let settings = Settings::default().with_changes(&stored).map_err(Error::InvalidSettings)?;
        Ok(Self { version: first.int("version")?, settings })
    }
}

impl Store {
    /// Reads the current settings.
    pub async fn load_settings(&self) -> Result<CurrentSettings, Error> {
        CurrentSettings::from_rows(&self.db.query(&LIST_WITH_VERSION, params! {}).await?)
    }

    /// Changes some settings, as (name, value) pairs, if the current version is still `expected_version`. Either all
    /// changes take effect or none. Invalid values are reported as [`Error::InvalidSettings`].
    pub async fn change_settings<'a>(
        &self,
        actor: impl Into<AuditActor<'a>>,
        expected_version: i64,
        changes: &[(&str, &str)],
    ) -> Result<SettingsChangeResult, Error> {
        let actor = actor.into();
        let mut tx = self.db.begin().await?;
        if tx.execute(&INCREMENT_VERSION, params! { expected: expected_version }).await? == 0 {
            tx.rollback().await?;
            return Ok(SettingsChangeResult::Lost(self.load_settings().await?));
        }
        let old = CurrentSettings::from_rows(&tx.query(&LIST_WITH_VERSION, params! {}).await?)?;
        let settings = match old.settings.with_changes(changes) {
            Ok(settings) => settings,
            Err(problems) => {
                tx.rollback().await?;
                return Err(Error::InvalidSettings(problems));
            }
        };
        let (mut before, mut after) = (Map::new(), Map::new());
        for &(name, _) in changes {
            // The audit gets the normalized value, not the input: `60s` is stored as `1m`.
            let value = settings.find_value_text(name).unwrap_or_default();
            before.insert(name.to_owned(), old.settings.find_value_text(name).into());
            after.insert(name.to_owned(), value.clone().into());
            let row = params! { name: name, value: value, changed_by: actor.name };
            if tx.execute(&UPDATE, row.clone()).await? == 0 {
                tx.execute(&INSERT, row).await?;
            }
        }
        let version = old.version;
        let with_version = |values: Map<String, Value>, version: i64| {
            Some(json!({ "version": version, "values": values }))
        };
        let action = AuditAction {
            action: "set",
            object: "settings".to_owned(),
            before: with_version(before, expected_version),
            after: with_version(after, version),
        };
        audit::append_audit_entry(&mut tx, actor, action).await?;
        tx.commit().await?;
        Ok(SettingsChangeResult::Applied(CurrentSettings { version, settings }))
    }
}
