//! The settings of the cluster, and the audit.

use tasuki_store::{AuditEntry, AuditHead, CurrentSettings, SettingsChangeResult};

use super::{Actor, CurrentState, Error, Operator};

impl Operator {
    /// The current settings with their version.
    pub async fn read_settings(&self) -> Result<CurrentSettings, Error> {
        Ok(self.store.load_settings().await?)
    }

    /// Changes settings, all or none, if their version is still `expected_version`.
    pub async fn change_settings(
        &self,
        by: &Actor,
        expected_version: i64,
        changes: &[(&str, &str)],
    ) -> Result<CurrentSettings, Error> {
        match self.store.change_settings(by.for_store(), expected_version, changes).await? {
            SettingsChangeResult::Applied(current) => {
                self.notifier.wake_all();
                self.notifier.outbox_of_worker_hints().enqueue_reload(current.version);
                Ok(current)
            }
            SettingsChangeResult::Lost(current) => {
                let message = format!(
                    "the settings were changed by another request; their version is now {}",
                    current.version
                );
                Err(Error::lost(message, CurrentState::Settings(current)))
            }
        }
    }

    /// Audit entries after this one, in order.
    pub async fn list_audit(&self, after: i64, limit: u32) -> Result<Vec<AuditEntry>, Error> {
        Ok(self.store.list_audit_entries_after(after, limit).await?)
    }

    /// The newest entry of the audit.
    pub async fn read_audit_head(&self) -> Result<AuditHead, Error> {
        Ok(self.store.find_audit_head().await?)
    }
}
