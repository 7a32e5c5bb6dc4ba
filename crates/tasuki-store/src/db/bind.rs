//! Parameter values of a statement, and how they are bound with each driver.

use sqlx::{AssertSqlSafe, MySql, Postgres, Sqlite};
use uuid::Uuid;

use crate::db::sql::TranslatedStatement;

/// The value of a named parameter. A null value still has a type, because PostgreSQL requires it.
#[derive(Debug, Clone)]
pub(crate) enum Param {
    Int(Option<i64>),
    Text(Option<String>),
    Uuid(Option<Uuid>),
    Bytes(Option<Vec<u8>>),
    Ints(Vec<i64>),
    Uuids(Vec<Uuid>),
    OptInts(Vec<Option<i64>>),
    Texts(Vec<Option<String>>),
}

macro_rules! param_from {
    ($($type:ty => $variant:ident($value:ident) $to:expr;)+) => {
        $(impl From<$type> for Param {
            fn from($value: $type) -> Self {
                Self::$variant($to)
            }
        })+
    };
}
param_from! {
    i64 => Int(value) Some(value);
    Option<i64> => Int(value) value;
    u32 => Int(value) Some(i64::from(value));
    &str => Text(value) Some(value.to_owned());
    String => Text(value) Some(value);
    Option<String> => Text(value) value;
    Uuid => Uuid(value) Some(value);
    Option<Uuid> => Uuid(value) value;
    Vec<u8> => Bytes(value) Some(value);
    Option<Vec<u8>> => Bytes(value) value;
    Vec<i64> => Ints(value) value;
    Vec<Uuid> => Uuids(value) value;
    Vec<Option<i64>> => OptInts(value) value;
    Vec<Option<String>> => Texts(value) value;
}

/// Parameter values by name.
pub(crate) type Params<'a> = Vec<(&'a str, Param)>;

/// Builds [`Params`]: `params! { run_id: 7, token: token }`.
macro_rules! params {
    ($($name:ident: $value:expr),* $(,)?) => {
        vec![$((stringify!($name), crate::db::bind::Param::from($value))),*]
    };
}
pub(crate) use params;

/// Returns the values in the order of `names`, the parameter names of the statement or of one of its rows. `:now` is
/// the clock that a test has set. Panics if a parameter has no value.
pub(crate) fn values_in_statement_order(
    statement: &TranslatedStatement,
    names: &[String],
    mut params: Params<'_>,
    now: Option<i64>,
) -> Vec<Param> {
    let value = |(index, name): (usize, &String)| {
        let param = params.iter().position(|(param, _)| param == name);
        match (param, now) {
            // Cloned only if the statement needs the value again, because a list may be long.
            (Some(param), _) if names[index + 1..].contains(name) => params[param].1.clone(),
            (Some(param), _) => params.swap_remove(param).1,
            (None, Some(now)) if name == "now" => Param::Int(Some(now)),
            _ => panic!("no value for parameter :{name} of statement {}", statement.name),
        }
    };
    names.iter().enumerate().map(value).collect()
}

/// Defines a function that binds values to a statement. The values are in the order that the statement expects.
macro_rules! bind {
    ($function:ident, $database:ty, $arguments:ty, $query:ident, $lists:expr) => {
        pub(crate) fn $function<'q>(
            statement: &'q TranslatedStatement,
            params: Vec<Param>,
        ) -> sqlx::query::Query<'q, $database, $arguments> {
            let mut $query = sqlx::query::<$database>(AssertSqlSafe(statement.text.as_str()));
            for param in params {
                $query = match param {
                    Param::Int(value) => $query.bind(value),
                    Param::Text(value) => $query.bind(value),
                    Param::Uuid(value) => $query.bind(value),
                    Param::Bytes(value) => $query.bind(value),
                    list => $lists($query, list),
                };
            }
            $query
        }
    };
}

bind!(
    bind_postgres,
    Postgres,
    sqlx::postgres::PgArguments,
    query,
    |query: sqlx::query::Query<'q, Postgres, sqlx::postgres::PgArguments>, list| match list {
        Param::Ints(list) => query.bind(list),
        Param::Uuids(list) => query.bind(list),
        Param::OptInts(list) => query.bind(list),
        Param::Texts(list) => query.bind(list),
        _ => unreachable!("single values are bound above"),
    }
);
bind!(
    bind_sqlite,
    Sqlite,
    sqlx::sqlite::SqliteArguments,
    query,
    |query: sqlx::query::Query<'q, Sqlite, sqlx::sqlite::SqliteArguments>, list| query
        .bind(json_list(list))
);
bind!(
    bind_mysql,
    MySql,
    sqlx::mysql::MySqlArguments,
    query,
    |query: sqlx::query::Query<'q, MySql, sqlx::mysql::MySqlArguments>, list| query
        .bind(json_list(list))
);

/// Encodes a list as a JSON text, for the databases that have no arrays.
fn json_list(list: Param) -> String {
    let text = match list {
        Param::Ints(list) => serde_json::to_string(&list),
        Param::OptInts(list) => serde_json::to_string(&list),
        Param::Texts(list) => serde_json::to_string(&list),
        _ => unreachable!("SQLite and MySQL get only lists of numbers and texts"),
    };
    text.expect("numbers and texts can be encoded as JSON")
}
