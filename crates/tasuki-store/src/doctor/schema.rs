//! Checks of the schema itself: migrations, triggers, unique keys.

use std::collections::{BTreeMap, BTreeSet};

use crate::Error;
use crate::db::migrate::{self, Migration};
use crate::db::sql::{Sql, sql};
use crate::db::{Tx, params};
use crate::doctor::DoctorReport;

static LIST_TRIGGERS: Sql = sql!("doctor/list_triggers", ".sqlite", ".postgres", ".mysql");
static LIST_UNIQUE_KEYS: Sql = sql!("doctor/list_unique_keys", ".sqlite", ".postgres", ".mysql");

/// The unique keys that the invariants need: the invariant, the table, and the columns in alphabetical order.
const REQUIRED_KEYS: &[(&str, &str, &[&str])] = &[
    ("I2", "tasuki_run", &["id"]),
    ("I2", "tasuki_run", &["job_id", "scope_id", "scope_kind", "slot"]),
    ("I2", "tasuki_run", &["idempotency_key"]),
    ("I2", "tasuki_event", &["dedupe_key", "source"]),
    ("I4", "tasuki_term_history", &["epoch"]),
    ("I6", "tasuki_attempt", &["attempt_no", "run_id"]),
    ("I13", "tasuki_hold", &["job_id", "scope_id", "scope_kind"]),
    ("I19", "tasuki_due", &["due_at", "lane", "run_id"]),
    ("I19", "tasuki_lease", &["token"]),
];

/// Checks that all migrations have been applied completely, and none that this tasuki does not know.
pub(super) async fn check_migrations(
    tx: &mut Tx<'_>,
    report: &mut DoctorReport,
) -> Result<(), Error> {
    if !migrate::has_migration_table(tx).await? {
        report.add_error("schema", "the database contains no tables of tasuki");
        return Ok(());
    }
    match migrate::list_unapplied_migrations(tx).await {
        Ok(pending) => {
            for migration in pending {
                let example = format!("{} {}", migration.version, migration.name);
                report.add_row("schema", "a migration has not been applied", example);
            }
        }
        Err(error @ (Error::NewerSchema { .. } | Error::InvalidMigration { .. })) => {
            report.add_error("schema", error.to_string());
        }
        Err(error) => return Err(error),
    }
    Ok(())
}

/// Checks that every trigger of the migrations exists on its table and fires in every session.
pub(super) async fn check_triggers(
    tx: &mut Tx<'_>,
    report: &mut DoctorReport,
) -> Result<(), Error> {
    let mut existing = BTreeMap::new();
    for row in tx.query(&LIST_TRIGGERS, params! {}).await? {
        existing.insert((row.text("name")?, row.text("table_name")?), row.int("always")? != 0);
    }
    for migration in Migration::all(tx.dialect()) {
        for (name, table) in triggers_in(migration.text()) {
            let example = format!("{name} on {table}");
            match existing.get(&(name.to_owned(), table.to_owned())) {
                Some(true) => {}
                Some(false) => {
                    report.add_row("triggers", "a trigger is not enabled ALWAYS", example);
                }
                None => report.add_row("triggers", "a trigger is missing", example),
            }
        }
    }
    Ok(())
}

/// The names and tables of the triggers that a migration creates.
fn triggers_in(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let definitions = text.split("create trigger ").skip(1);
    definitions.filter_map(|rest| {
        let mut words = rest.split_whitespace();
        let name = words.next()?;
        words.find(|word| *word == "on")?;
        Some((name, words.next()?))
    })
}

/// Checks that every unique key that an invariant needs exists.
pub(super) async fn check_unique_keys(
    tx: &mut Tx<'_>,
    report: &mut DoctorReport,
) -> Result<(), Error> {
    let mut columns: BTreeMap<(String, String), BTreeSet<String>> = BTreeMap::new();
    for row in tx.query(&LIST_UNIQUE_KEYS, params! {}).await? {
        let key = (row.text("table_name")?, row.text("key_name")?);
        columns.entry(key).or_default().insert(row.text("column_name")?);
    }
    for &(check, table, wanted) in REQUIRED_KEYS {
        let exists =
            columns.iter().any(|((of, _), columns)| of == table && columns.iter().eq(wanted));
        if !exists {
            let example = format!("{table} ({})", wanted.join(", "));
            report.add_row(check, "a unique key is missing", example);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use tasuki_core::RunState;
    use tasuki_core::run::transition;

    use super::*;
    use crate::Dialect;

    const DIALECTS: [Dialect; 3] = [Dialect::Sqlite, Dialect::Postgres, Dialect::MySql];

    /// The text of the only migration, which creates the tables and the triggers.
    fn initial_migration(dialect: Dialect) -> &'static str {
        let [initial] = Migration::all(dialect) else {
            panic!("{dialect:?} has several migrations")
        };
        initial.text()
    }

    /// The state transitions that the trigger allows. Understands three forms: `old.state = 'A' and new.state in
    /// ('B', 'C')`; `old.state = 'A' and (new.state = 'B' or new.state = 'C')`; and a list of `A>B`.
    fn allowed_transitions(text: &str) -> BTreeSet<(String, String)> {
        let mut transitions = BTreeSet::new();
        let is_state = |word: &str| word.parse::<RunState>().is_ok();
        for word in text.split(['\'', ',']) {
            // A>A is no transition: the list contains it because the trigger also fires for updates of other columns.
            let is_transition = |(from, to): &(&str, &str)| is_state(from) && from != to;
            if let Some((from, to)) = word.split_once('>').filter(is_transition) {
                transitions.insert((from.to_owned(), to.to_owned()));
            }
        }
        for rest in text.split("old.state = '").skip(1) {
            let (from, rest) = rest.split_once('\'').expect("the state is quoted");
            // The states of the last condition end with the trigger's condition, those of the others before the next
            // condition.
            let ends = ["\n    )", "\n    execute", ";"];
            let end = ends.iter().filter_map(|end| rest.find(end)).min();
            for to in rest[..end.unwrap_or(rest.len())].split('\'').skip(1).step_by(2) {
                transitions.insert((from.to_owned(), to.to_owned()));
            }
        }
        transitions
    }

    #[test]
    fn every_trigger_allows_exactly_the_transitions_of_the_table() {
        let name = |state: RunState| state.as_str().to_owned();
        let legal: BTreeSet<_> =
            transition::list_state_changes().map(|(from, to)| (name(from), name(to))).collect();
        assert!(legal.len() > 20);
        for dialect in DIALECTS {
            assert_eq!(allowed_transitions(initial_migration(dialect)), legal, "{dialect:?}");
        }
    }

    /// SQLite builds a temporary table for an `in` list of three or more values, again for every row that is checked.
    #[test]
    fn sqlite_checks_a_run_without_long_lists() {
        let text = initial_migration(Dialect::Sqlite);
        let between = |start: &str, end: &str| {
            let (_, rest) = text.split_once(start).expect("the migration contains the start");
            rest.split_once(end).expect("the migration contains the end").0
        };
        let table = between("create table tasuki_run_state (", "\n);");
        let trigger = between("create trigger tasuki_run_legal_transition ", "\nend;");
        for list in [table, trigger].iter().flat_map(|text| text.split(" in (").skip(1)) {
            let (list, _) = list.split_once(')').expect("the list has an end");
            assert!(list.split(',').count() <= 2, "in ({list})");
        }
    }

    #[test]
    fn the_doctor_expects_every_trigger_of_the_migration() {
        for dialect in DIALECTS {
            let text = initial_migration(dialect);
            let found: Vec<_> = triggers_in(text).collect();
            assert_eq!(found.len(), text.matches("create trigger").count());
            assert!(found.len() >= 10);
            // SQLite stores a run in two tables; some triggers of tasuki_run_state have the names that they have
            // elsewhere.
            let base = |table: &str| table.trim_end_matches("_state").to_owned();
            assert_eq!(found[0].0, "tasuki_run_legal_transition", "{dialect:?}");
            assert_eq!(base(found[0].1), "tasuki_run", "{dialect:?}");
            assert!(found.iter().all(|(name, table)| name.starts_with(&base(table))), "{found:?}");
        }
    }
}
