//! SQL statements: files that are included at compile time and translated for each database at first use.
//!
//! A file is written once for all three databases, with named parameters, and with `:now` for the database's own
//! clock. Where a database needs another text, a sibling file with the database's name replaces it.

#[cfg(not(feature = "mutants"))]
use std::borrow::Cow;
use std::sync::OnceLock;

/// The kind of a database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// SQLite, which runs inside this process.
    Sqlite,
    /// PostgreSQL.
    Postgres,
    /// MySQL or MariaDB.
    MySql,
}

impl Dialect {
    /// Returns an expression for the database's clock, in microseconds since 1970. It is a scalar subquery: the
    /// database evaluates it once per statement and can use it as an index bound, which it cannot do with a bare
    /// volatile function.
    fn now_expression(self) -> &'static str {
        match self {
            Self::Sqlite => "(select cast(unixepoch('subsec') * 1000000 as integer))",
            Self::Postgres => "(select (extract(epoch from clock_timestamp()) * 1000000)::bigint)",
            Self::MySql => "(select timestampdiff(microsecond, '1970-01-01', utc_timestamp(6)))",
        }
    }
}

/// One statement as it is written in the `sql` folder, for all databases.
pub(crate) struct Sql {
    name: &'static str,
    /// The text for each [`Dialect`].
    texts: [&'static str; 3],
    removed_clause: Option<&'static str>,
    /// The translated statements: for each dialect one with the database's clock and one with a bound `:now`.
    translated: [OnceLock<TranslatedStatement>; 6],
}

/// A statement that is translated for one driver.
pub(crate) struct TranslatedStatement {
    /// The name of its file, for messages.
    pub(crate) name: &'static str,
    pub(crate) text: String,
    /// The names of its parameters, in the order in which the driver expects their values.
    pub(crate) param_names: Vec<String>,
}

impl TranslatedStatement {
    /// Returns an id that is unique in this process: the address, because statements are never moved.
    pub(crate) fn id(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }
}

impl Sql {
    pub(crate) const fn new(name: &'static str, texts: [&'static str; 3]) -> Self {
        Self { name, texts, removed_clause: None, translated: [const { OnceLock::new() }; 6] }
    }

    /// Returns the same statement without one of its clauses.
    pub(crate) const fn without_clause(mut self, clause: &'static str) -> Self {
        self.removed_clause = Some(clause);
        self
    }

    fn text(&self, dialect: Dialect) -> String {
        let text = text_or_mutant(self.texts[dialect as usize]);
        match self.removed_clause {
            Some(clause) => text.replace(clause, ""),
            None => text.into_owned(),
        }
    }

    /// Returns an `insert ... values (...)` whose list of values is repeated for several rows. Its parameters are those
    /// of the first row, then those of the second row, and so on.
    pub(crate) fn with_repeated_values(
        &self,
        dialect: Dialect,
        now_is_bound: bool,
        rows: usize,
    ) -> TranslatedStatement {
        let text = self.text(dialect);
        let (head, row) =
            text.split_once("\nvalues ").expect("the statement is an insert of one row");
        let rows = vec![row.trim_end(); rows].join(",\n");
        translate_with(self.name, &format!("{head}\nvalues {rows}"), dialect, now_is_bound, false)
    }

    /// Returns the statement for a database. If a test has set the clock, `:now` is a normal parameter.
    pub(crate) fn for_dialect(&self, dialect: Dialect, now_is_bound: bool) -> &TranslatedStatement {
        let index = dialect as usize * 2 + usize::from(now_is_bound);
        self.translated[index]
            .get_or_init(|| translate(self.name, &self.text(dialect), dialect, now_is_bound))
    }
}

/// Returns a text that was included at compile time; in a mutation test with the changes of the mutant.
#[cfg(not(feature = "mutants"))]
pub(crate) fn text_or_mutant(text: &'static str) -> Cow<'static, str> {
    Cow::Borrowed(text)
}
#[cfg(feature = "mutants")]
pub(crate) use crate::db::replace_sql_with_mutants::mutate as text_or_mutant;

/// Includes `sql/<name>.sql` for all databases, or one file for each database.
macro_rules! sql {
    ($name:literal) => {
        Sql::new(
            $name,
            [include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/sql/", $name, ".sql")); 3],
        )
    };
    ($name:literal, $sqlite:literal, $postgres:literal, $mysql:literal) => {
        Sql::new(
            $name,
            [
                include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/sql/", $name, $sqlite, ".sql")),
                include_str!(concat!(
                    env!("CARGO_MANIFEST_DIR"),
                    "/sql/",
                    $name,
                    $postgres,
                    ".sql"
                )),
                include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/sql/", $name, $mysql, ".sql")),
            ],
        )
    };
}
pub(crate) use sql;

/// Includes several files that are sent to SQLite as one script, because each statement that is sent separately to the
/// driver's thread waits for its turn among all other tasks of the program. The statements share their parameters.
/// The script returns the rows of all of them, and the sum of the rows that they matched.
macro_rules! sqlite_script {
    ($first:literal $(, $next:literal)+ $(,)?) => {
        Sql::new(
            concat!($first $(, ", ", $next)+),
            [concat!(
                include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/sql/", $first, ".sql")),
                $(";\n", include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/sql/", $next, ".sql"))),+
            ); 3],
        )
    };
}
pub(crate) use sqlite_script;

/// Translates a statement for a database: parameters get the driver's syntax, and comments are removed.
pub(crate) fn translate(
    name: &'static str,
    text: &str,
    dialect: Dialect,
    now_is_bound: bool,
) -> TranslatedStatement {
    let numbered = dialect != Dialect::MySql;
    translate_with(name, text, dialect, now_is_bound, numbered)
}

/// Translates a statement with numbered or positional parameters. A positional parameter that occurs twice is listed
/// twice in [`TranslatedStatement::param_names`].
fn translate_with(
    name: &'static str,
    text: &str,
    dialect: Dialect,
    now_is_bound: bool,
    numbered: bool,
) -> TranslatedStatement {
    let mut statement = TranslatedStatement {
        name,
        text: String::with_capacity(text.len()),
        param_names: Vec::new(),
    };
    let mut rest = &*without_comments(text);
    while let Some(start) = rest.find([':', '\'']) {
        let (before, from) = rest.split_at(start);
        statement.text.push_str(before);
        if let Some(quoted) = from.strip_prefix('\'') {
            let end = quoted.find('\'').map_or(from.len(), |end| end + 2);
            statement.text.push_str(&from[..end]);
            rest = &from[end..];
        } else if let Some(cast) = from.strip_prefix("::") {
            statement.text.push_str("::");
            rest = cast;
        } else {
            let is_name_char = |c: char| c.is_ascii_alphanumeric() || c == '_';
            let end = from[1..].find(|c| !is_name_char(c)).map_or(from.len(), |end| end + 1);
            let param_name = &from[1..end];
            match param_name == "now" && !now_is_bound {
                true => statement.text.push_str(dialect.now_expression()),
                false => statement.push_parameter(param_name, numbered),
            }
            rest = &from[end..];
        }
    }
    statement.text.push_str(rest);
    if dialect == Dialect::Sqlite {
        // SQLite has one writer at a time, so there are no row locks. And SQLite keeps a run in two tables; a
        // transition changes only one of them.
        statement.text = statement
            .text
            .replace(" for update skip locked", "")
            .replace(" for update", "")
            .replace("update tasuki_run\n", "update tasuki_run_state as tasuki_run\n");
    }
    statement
}

impl TranslatedStatement {
    fn push_parameter(&mut self, name: &str, numbered: bool) {
        // Only numbered parameters can be reused. Positional ones are not searched: there may be thousands of them.
        let known =
            numbered.then(|| self.param_names.iter().position(|known| known == name)).flatten();
        let number = known.map_or_else(
            || {
                self.param_names.push(name.to_owned());
                self.param_names.len()
            },
            |index| index + 1,
        );
        match numbered {
            false => self.text.push('?'),
            // Not `?9` on SQLite: a statement with only that parameter counts nine, and the driver's count differs.
            true => self.text.push_str(&format!("${number}")),
        }
    }
}

fn without_comments(text: &str) -> String {
    let lines = text.lines().filter(|line| !line.trim_start().starts_with("--"));
    lines
        .map(|line| line.split_once(" -- ").map_or(line, |(code, _)| code))
        .collect::<Vec<_>>()
        .join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn translated(text: &str, dialect: Dialect) -> (String, Vec<String>) {
        let statement = translate("test", text, dialect, true);
        (statement.text, statement.param_names)
    }

    #[test]
    fn named_parameters_get_the_syntax_of_each_driver() {
        let text = "-- a comment with :nothing\nselect :a, ':b', :a::bigint + :now -- :c\nfrom x";
        let owned = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(
            translated(text, Dialect::Postgres),
            ("select $1, ':b', $1::bigint + $2\nfrom x".to_owned(), owned(&["a", "now"]))
        );
        assert_eq!(
            translated(text, Dialect::MySql),
            ("select ?, ':b', ?::bigint + ?\nfrom x".to_owned(), owned(&["a", "a", "now"]))
        );
        assert_eq!(translated(text, Dialect::Sqlite).1, owned(&["a", "now"]));
    }

    #[test]
    fn now_reads_the_databases_clock_unless_a_test_binds_it() {
        let statement = translate("test", "select :now", Dialect::Postgres, false);
        assert!(statement.text.contains("clock_timestamp()") && statement.param_names.is_empty());
    }

    #[test]
    fn locking_clauses_are_removed_for_sqlite() {
        let text = "select id from t for update skip locked";
        assert_eq!(translated(text, Dialect::Sqlite).0, "select id from t");
    }
}
