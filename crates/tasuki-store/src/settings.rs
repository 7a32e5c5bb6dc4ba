//! Settings: how the cluster behaves, changed together, checked together.

use serde_json::{Map, Value, json};
use tasuki_core::Settings;

use crate::audit::{self, Act, Actor};
use crate::db::sql::{Sql, sql};
use crate::db::{Row, params};
use crate::{Error, Store};

static IN_FORCE: Sql = sql!("setting/in_force");
static RAISE: Sql = sql!("setting/raise");
static CHANGE: Sql = sql!("setting/change");
static ADD: Sql = sql!("setting/add");

/// The settings in force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SettingsInForce {
    /// Raised by every change. Whoever changes shows the one it read.
    pub version: i64,
    /// Every value: the stored ones, and the defaults of the others.
    pub settings: Settings,
}

/// What became of a change of settings.
#[must_use]
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SettingsChange {
    /// These are in force now.
    Applied(SettingsInForce),
    /// Somebody else changed them since they were read. Nothing was written; these are in force.
    Lost(SettingsInForce),
}

impl SettingsInForce {
    fn from_rows(rows: &[Row]) -> Result<Self, Error> {
        let first = rows.first().ok_or_else(|| Error::broken("settings have no version"))?;
        let mut stored = Vec::with_capacity(rows.len());
        for row in rows {
            if let Some(name) = row.opt_text("name")? {
                stored.push((name, row.text("value")?));
            }
        }
        let settings = Settings::default().with(&stored).map_err(Error::Settings)?;
        Ok(Self { version: first.int("version")?, settings })
    }
}

impl Store {
    /// The settings in force.
    pub async fn settings(&self) -> Result<SettingsInForce, Error> {
        SettingsInForce::from_rows(&self.db.rows(&IN_FORCE, params! {}).await?)
    }

    /// Changes some of the settings, all or none, if they are still those of version `seen`. What is
    /// wrong with them, one by one or together, is told as [`Error::Settings`].
    pub async fn change_settings<'a>(
        &self,
        by: impl Into<Actor<'a>>,
        seen: i64,
        changes: &[(&str, &str)],
    ) -> Result<SettingsChange, Error> {
        let by = by.into();
        let mut tx = self.db.begin().await?;
        if tx.execute(&RAISE, params! { seen: seen }).await? == 0 {
            tx.rollback().await?;
            return Ok(SettingsChange::Lost(self.settings().await?));
        }
        let old = SettingsInForce::from_rows(&tx.rows(&IN_FORCE, params! {}).await?)?;
        let settings = match old.settings.with(changes) {
            Ok(settings) => settings,
            Err(problems) => {
                tx.rollback().await?;
                return Err(Error::Settings(problems));
            }
        };
        let (mut before, mut after) = (Map::new(), Map::new());
        for &(name, _) in changes {
            // As they are shown, not as they were typed: `60s` is stored as `1m`.
            let value = settings.get(name).unwrap_or_default();
            before.insert(name.to_owned(), old.settings.get(name).into());
            after.insert(name.to_owned(), value.clone().into());
            let row = params! { name: name, value: value, changed_by: by.name };
            if tx.execute(&CHANGE, row.clone()).await? == 0 {
                tx.execute(&ADD, row).await?;
            }
        }
        let version = old.version;
        let with_version = |values: Map<String, Value>, version: i64| {
            Some(json!({ "version": version, "values": values }))
        };
        let act = Act {
            action: "set",
            object: "settings".to_owned(),
            before: with_version(before, seen),
            after: with_version(after, version),
        };
        audit::append(&mut tx, by, act).await?;
        tx.commit().await?;
        Ok(SettingsChange::Applied(SettingsInForce { version, settings }))
    }
}
