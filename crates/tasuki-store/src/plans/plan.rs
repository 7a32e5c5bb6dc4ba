//! What PostgreSQL would do for a statement, in a few words: `run by run_pkey on id`.

use std::collections::BTreeSet;

use serde_json::Value;
use sqlx::{AssertSqlSafe, Executor as _, PgConnection, Row as _};

use crate::db::sql::Ready;

/// A statement as the store prepares it: its text, and the types of its parameters.
pub(super) struct Prepared {
    pub(super) name: &'static str,
    text: String,
    types: Vec<String>,
}

impl Prepared {
    /// PostgreSQL tells the types. The store binds every integer as the widest one, as this does.
    pub(super) async fn new(session: &mut PgConnection, ready: Ready) -> Self {
        run(session, &format!("prepare asked as {}", ready.text)).await;
        let told = one(
            session,
            "select array_to_string(parameter_types, ',') from pg_prepared_statements where name = 'asked'",
        )
        .await;
        run(session, "deallocate asked").await;
        let wide = |told: &str| told.replace("integer", "bigint").replace("smallint", "bigint");
        let types = told.split(',').filter(|told| !told.is_empty()).map(wide).collect();
        Self { name: ready.statement, text: ready.text, types }
    }

    /// How this session would go about it. With the settings of the store the values play no part.
    pub(super) async fn plan(&self, session: &mut PgConnection) -> BTreeSet<String> {
        let list = |words: &[String]| match words {
            [] => String::new(),
            words => format!("({})", words.join(", ")),
        };
        let nulls = vec!["null".to_owned(); self.types.len()];
        run(session, &format!("prepare planned {} as {}", list(&self.types), self.text)).await;
        let explain = format!("explain (format json) execute planned {}", list(&nulls));
        let told: Value = serde_json::from_str(&one(session, &explain).await).unwrap();
        run(session, "deallocate planned").await;
        let mut ways = BTreeSet::new();
        walk(&told[0]["Plan"], &mut ways);
        ways
    }
}

/// Collects how a plan reaches tables. Returns whether it reached any.
fn walk(node: &Value, ways: &mut BTreeSet<String>) -> bool {
    let word = |name: &str| node[name].as_str().map(|word| word.replace("tasuki_", ""));
    let (kind, table) = (word("Node Type").unwrap(), word("Relation Name").unwrap_or_default());
    let index = word("Index Name").unwrap_or_default();
    let mut reached = true;
    match (&*kind, word("Index Cond")) {
        // Without a condition it reads the index from one end: well if that is the order of a list, and
        // as bad as reading the whole table if it is not.
        ("Index Scan" | "Index Only Scan", None) => ways.insert(format!("{table} along {index}")),
        ("Index Scan" | "Index Only Scan", Some(condition)) => {
            ways.insert(format!("{table} by {index} on {}", columns(&condition)))
        }
        ("Tid Scan", _) => ways.insert(format!("{table} by its place")),
        (kind, _) if kind.ends_with("Scan") && !table.is_empty() => {
            ways.insert(format!("{table} by a {kind}"))
        }
        _ => {
            reached = false;
            false
        }
    };
    for child in node["Plans"].as_array().into_iter().flatten() {
        reached |= walk(child, ways);
    }
    // A list that must be sorted first reads more than its page. Sorting what an earlier part of the
    // statement gave is nothing of that kind.
    if kind == "Sort" && reached {
        ways.insert("sorted".to_owned());
    }
    reached
}

/// The columns that a condition binds: what stands on the left in each of its parts.
fn columns(condition: &str) -> String {
    let left = |part: &str| {
        let part = part.trim_start_matches('(');
        match part.strip_prefix("ROW(") {
            Some(row) => row.split(')').next().unwrap_or_default().to_owned(),
            None => part.split(' ').next().unwrap_or_default().to_owned(),
        }
    };
    let plain = |column: &str| column.rsplit('.').next().unwrap_or_default().to_owned();
    let parts: Vec<String> = condition.split(" AND ").map(left).collect();
    let mut columns: Vec<String> = parts.join(", ").split(", ").map(plain).collect();
    let mut seen = BTreeSet::new();
    columns.retain(|column| seen.insert(column.clone()));
    columns.join(", ")
}

pub(super) async fn run(session: &mut PgConnection, text: &str) {
    let done = session.execute(sqlx::raw_sql(AssertSqlSafe(text.to_owned()))).await;
    done.unwrap_or_else(|error| panic!("{error}: {text}"));
}

/// The only value of the only row, as text.
pub(super) async fn one(session: &mut PgConnection, text: &str) -> String {
    let row = session.fetch_one(sqlx::raw_sql(AssertSqlSafe(text.to_owned()))).await;
    row.unwrap_or_else(|error| panic!("{error}: {text}")).try_get_unchecked(0).unwrap()
}
