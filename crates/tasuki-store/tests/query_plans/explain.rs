//! The access paths of a statement as PostgreSQL's EXPLAIN shows them, in short form: `run by run_pkey on id`.

use std::collections::BTreeSet;

use serde_json::Value;
use sqlx::{AssertSqlSafe, Executor as _, PgConnection, Row as _};

use crate::db::sql::TranslatedStatement;

/// A statement as the store prepares it, with the types of its parameters.
pub(super) struct Prepared {
    pub(super) name: &'static str,
    text: String,
    types: Vec<String>,
}

impl Prepared {
    /// Reads the parameter types from PostgreSQL. Integers are bigint, because the store binds every integer as bigint.
    pub(super) async fn new(connection: &mut PgConnection, statement: TranslatedStatement) -> Self {
        execute(connection, &format!("prepare typed as {}", statement.text)).await;
        let output = query_text(
            connection,
            "select array_to_string(parameter_types, ',') from pg_prepared_statements where name = 'typed'",
        )
        .await;
        execute(connection, "deallocate typed").await;
        let wide = |output: &str| output.replace("integer", "bigint").replace("smallint", "bigint");
        let types = output.split(',').filter(|output| !output.is_empty()).map(wide).collect();
        Self { name: statement.name, text: statement.text, types }
    }

    /// The access paths that PostgreSQL chooses on this connection. With the store's settings they do not depend on
    /// the values.
    pub(super) async fn access_paths(&self, connection: &mut PgConnection) -> BTreeSet<String> {
        let list = |types: &[String]| match types {
            [] => String::new(),
            types => format!("({})", types.join(", ")),
        };
        let nulls = vec!["null".to_owned(); self.types.len()];
        execute(connection, &format!("prepare planned {} as {}", list(&self.types), self.text))
            .await;
        let explain = format!("explain (format json) execute planned {}", list(&nulls));
        let output: Value = serde_json::from_str(&query_text(connection, &explain).await).unwrap();
        execute(connection, "deallocate planned").await;
        let mut paths = BTreeSet::new();
        collect_access_paths(&output[0]["Plan"], &mut paths);
        paths
    }
}

/// Collects the access paths of a plan node and its children. Returns whether any of them reads a table.
fn collect_access_paths(node: &Value, paths: &mut BTreeSet<String>) -> bool {
    let field = |name: &str| node[name].as_str().map(|text| text.replace("tasuki_", ""));
    let (kind, table) = (field("Node Type").unwrap(), field("Relation Name").unwrap_or_default());
    let index = field("Index Name").unwrap_or_default();
    let mut reads_table = true;
    match (&*kind, field("Index Cond")) {
        // Without a condition, the scan starts at one end of the index. This is good if a list has this order and a
        // limit; otherwise it is as expensive as reading the whole table.
        ("Index Scan" | "Index Only Scan", None) => paths.insert(format!("{table} along {index}")),
        ("Index Scan" | "Index Only Scan", Some(condition)) => {
            paths.insert(format!("{table} by {index} on {}", condition_columns(&condition)))
        }
        ("Tid Scan", _) => paths.insert(format!("{table} by ctid")),
        (kind, _) if kind.ends_with("Scan") && !table.is_empty() => {
            paths.insert(format!("{table} by a {kind}"))
        }
        _ => {
            reads_table = false;
            false
        }
    };
    for child in node["Plans"].as_array().into_iter().flatten() {
        reads_table |= collect_access_paths(child, paths);
    }
    // If rows of a table are sorted, the statement reads more rows than one page. Sorting the result of a CTE does
    // not count.
    if kind == "Sort" && reads_table {
        paths.insert("sorted".to_owned());
    }
    reads_table
}

/// The columns of an index condition: the left side of each comparison.
fn condition_columns(condition: &str) -> String {
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

pub(super) async fn execute(connection: &mut PgConnection, text: &str) {
    let done = connection.execute(sqlx::raw_sql(AssertSqlSafe(text.to_owned()))).await;
    done.unwrap_or_else(|error| panic!("{error}: {text}"));
}

/// Returns the only value of the only row as text.
pub(super) async fn query_text(connection: &mut PgConnection, text: &str) -> String {
    let row = connection.fetch_one(sqlx::raw_sql(AssertSqlSafe(text.to_owned()))).await;
    row.unwrap_or_else(|error| panic!("{error}: {text}")).try_get_unchecked(0).unwrap()
}
