//! The ground everything stands on: migrations, triggers, unique keys.

use std::collections::{BTreeMap, BTreeSet};

use crate::Error;
use crate::db::migrate::{self, Migration};
use crate::db::sql::{Sql, sql};
use crate::db::{Tx, params};
use crate::doctor::Report;

static TRIGGERS: Sql = sql!("doctor/triggers", ".sqlite", ".postgres", ".mysql");
static KEYS: Sql = sql!("doctor/keys", ".sqlite", ".postgres", ".mysql");

/// The unique keys that promises rest on, and which.
const KEYS_WANTED: &[(&str, &str, &[&str])] = &[
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

/// Nothing pending, nothing broken off, nothing newer.
pub(super) async fn schema(tx: &mut Tx<'_>, report: &mut Report) -> Result<(), Error> {
    if !migrate::has_table(tx).await? {
        report.fault("schema", "there are no tables of tasuki here");
        return Ok(());
    }
    match migrate::pending(tx).await {
        Ok(pending) => {
            for migration in pending {
                let told = format!("{} {}", migration.version, migration.name);
                report.found("schema", "a migration has not been applied", told);
            }
        }
        Err(error @ (Error::NewerSchema { .. } | Error::Migration { .. })) => {
            report.fault("schema", error.to_string());
        }
        Err(error) => return Err(error),
    }
    Ok(())
}

/// Every trigger of the migrations is there, on its table, and cannot be passed by.
pub(super) async fn triggers(tx: &mut Tx<'_>, report: &mut Report) -> Result<(), Error> {
    let mut there = BTreeMap::new();
    for row in tx.rows(&TRIGGERS, params! {}).await? {
        there.insert((row.text("name")?, row.text("table_name")?), row.int("always")? != 0);
    }
    for migration in Migration::all(tx.dialect()) {
        for (name, table) in triggers_in(migration.text()) {
            let told = format!("{name} on {table}");
            match there.get(&(name.to_owned(), table.to_owned())) {
                Some(true) => {}
                Some(false) => report.found("triggers", "a trigger is not enabled ALWAYS", told),
                None => report.found("triggers", "a trigger is missing", told),
            }
        }
    }
    Ok(())
}

/// The triggers a migration makes: their names and tables.
fn triggers_in(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let made = text.split("create trigger ").skip(1);
    made.filter_map(|rest| {
        let mut words = rest.split_whitespace();
        let name = words.next()?;
        words.find(|word| *word == "on")?;
        Some((name, words.next()?))
    })
}

/// Every unique key that a promise rests on is there.
pub(super) async fn keys(tx: &mut Tx<'_>, report: &mut Report) -> Result<(), Error> {
    let mut columns: BTreeMap<(String, String), BTreeSet<String>> = BTreeMap::new();
    for row in tx.rows(&KEYS, params! {}).await? {
        let key = (row.text("table_name")?, row.text("key_name")?);
        columns.entry(key).or_default().insert(row.text("column_name")?);
    }
    for &(check, table, wanted) in KEYS_WANTED {
        let there =
            columns.iter().any(|((of, _), columns)| of == table && columns.iter().eq(wanted));
        if !there {
            let told = format!("{table} ({})", wanted.join(", "));
            report.found(check, "a unique key is missing", told);
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

    fn rules(dialect: Dialect) -> &'static str {
        let rules = Migration::all(dialect).iter().find(|one| one.name == "rules");
        rules.expect("there are rules").text()
    }

    /// `old.state = 'A' and new.state in ('B', 'C')`, or `(new.state = 'B' or new.state = 'C')`, one after the other; or a list of
    /// `A>B`.
    fn moves(text: &str) -> BTreeSet<(String, String)> {
        let mut moves = BTreeSet::new();
        let is_state = |word: &str| word.parse::<RunState>().is_ok();
        for word in text.split(['\'', ',']) {
            // What stays as it is does not move.
            let is_move = |(from, to): &(&str, &str)| is_state(from) && from != to;
            if let Some((from, to)) = word.split_once('>').filter(is_move) {
                moves.insert((from.to_owned(), to.to_owned()));
            }
        }
        for rest in text.split("old.state = '").skip(1) {
            let (from, rest) = rest.split_once('\'').expect("a quoted state");
            // The last of them ends with its condition, the others where the next begins.
            let ends = ["\n    )", "\n    execute", ";"];
            let end = ends.iter().filter_map(|end| rest.find(end)).min();
            for to in rest[..end.unwrap_or(rest.len())].split('\'').skip(1).step_by(2) {
                moves.insert((from.to_owned(), to.to_owned()));
            }
        }
        moves
    }

    #[test]
    fn the_legal_moves_of_every_trigger_are_those_of_the_table() {
        let word = |state: RunState| state.as_str().to_owned();
        let legal: BTreeSet<_> =
            transition::changes().map(|(from, to)| (word(from), word(to))).collect();
        assert!(legal.len() > 20);
        for dialect in DIALECTS {
            assert_eq!(moves(rules(dialect)), legal, "{dialect:?}");
        }
    }

    /// SQLite builds a table for a list of three or more, anew for every row that is checked.
    #[test]
    fn sqlite_checks_a_run_without_long_lists() {
        let migrations = Migration::all(Dialect::Sqlite);
        let runs = migrations.iter().find(|one| one.name == "runs").expect("there are runs").text();
        let (_, run) =
            runs.split_once("create table tasuki_run_life (").expect("what a move writes");
        let (run, _) = run.split_once("\n);").expect("it ends");
        let (legal_move, _) = rules(Dialect::Sqlite).split_once("\nend;").expect("it ends");
        for list in [run, legal_move].iter().flat_map(|text| text.split(" in (").skip(1)) {
            let (list, _) = list.split_once(')').expect("the list ends");
            assert!(list.split(',').count() <= 2, "in ({list})");
        }
    }

    #[test]
    fn every_trigger_of_the_migrations_is_looked_for() {
        for dialect in DIALECTS {
            let found: Vec<_> = triggers_in(rules(dialect)).collect();
            assert_eq!(found.len(), rules(dialect).matches("create trigger").count());
            assert!(found.len() >= 10);
            // On SQLite a run is two tables, and what both are named for has the same rules as elsewhere.
            let whole = |table: &str| table.trim_end_matches("_life").to_owned();
            assert_eq!(found[0].0, "tasuki_run_legal_move", "{dialect:?}");
            assert_eq!(whole(found[0].1), "tasuki_run", "{dialect:?}");
            assert!(found.iter().all(|(name, table)| name.starts_with(&whole(table))), "{found:?}");
        }
    }
}
