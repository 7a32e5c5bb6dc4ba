//! Values for the parameters of a statement, and how each driver takes them.

use sqlx::{AssertSqlSafe, MySql, Postgres, Sqlite};
use uuid::Uuid;

use crate::db::sql::Ready;

/// A value for a named parameter. `None` still has a type: PostgreSQL wants to know it.
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

/// Parameters by name.
pub(crate) type Params<'a> = Vec<(&'a str, Param)>;

/// `params! { run_id: 7, token: token }`
macro_rules! params {
    ($($name:ident: $value:expr),* $(,)?) => {
        vec![$((stringify!($name), crate::db::bind::Param::from($value))),*]
    };
}
pub(crate) use params;

/// The values in the order in which a statement names them.
pub(crate) fn in_order(
    ready: &Ready,
    names: &[String],
    mut params: Params<'_>,
    now: Option<i64>,
) -> Vec<Param> {
    let value = |(at, name): (usize, &String)| {
        let given = params.iter().position(|(given, _)| given == name);
        match (given, now) {
            // Cloned only where it is wanted once more: a list may be long.
            (Some(given), _) if names[at + 1..].contains(name) => params[given].1.clone(),
            (Some(given), _) => params.swap_remove(given).1,
            (None, Some(now)) if name == "now" => Param::Int(Some(now)),
            _ => panic!("no value for :{name} in {}", ready.statement),
        }
    };
    names.iter().enumerate().map(value).collect()
}

/// Binds values that are in the order a statement wants them.
macro_rules! bind {
    ($function:ident, $database:ty, $arguments:ty, $query:ident, $lists:expr) => {
        pub(crate) fn $function<'q>(
            ready: &'q Ready,
            params: Vec<Param>,
        ) -> sqlx::query::Query<'q, $database, $arguments> {
            let mut $query = sqlx::query::<$database>(AssertSqlSafe(ready.text.as_str()));
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

/// Where there are no arrays, a list is a JSON text.
fn json_list(list: Param) -> String {
    let text = match list {
        Param::Ints(list) => serde_json::to_string(&list),
        Param::OptInts(list) => serde_json::to_string(&list),
        Param::Texts(list) => serde_json::to_string(&list),
        _ => unreachable!("only lists of numbers and words come here"),
    };
    text.expect("numbers and words can be written")
}
