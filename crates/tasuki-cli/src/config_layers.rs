//! The start-up configuration of `tasuki node`. Each value comes from a flag, else an environment variable, else the
//! configuration file, else a default. One table ([`CONFIG_KEYS`]) lists all keys, so that each value has the same
//! name everywhere.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use toml_edit::{DocumentMut, Item, Value};

use crate::database_access;
use crate::failure::Failure;

/// Configuration file that is read if it exists and no other file is named.
const DEFAULT_CONFIG_FILE: &str = "/etc/tasuki/tasuki.toml";

/// One configuration key: its name, help text and default.
pub(crate) struct ConfigKey {
    /// The name in the file, such as `rpc_listen`. The flag is `--rpc-listen`, the variable `TASUKI_RPC_LISTEN`.
    pub(crate) name: &'static str,
    value_name: &'static str,
    default: Option<&'static str>,
    /// Whether the key may have several values.
    list: bool,
    help: &'static str,
}

const fn single_key(
    name: &'static str,
    value_name: &'static str,
    default: Option<&'static str>,
    help: &'static str,
) -> ConfigKey {
    ConfigKey { name, value_name, default, list: false, help }
}

const fn list_key(name: &'static str, value_name: &'static str, help: &'static str) -> ConfigKey {
    ConfigKey { name, value_name, default: None, list: true, help }
}

/// All configuration keys, in display order.
pub(crate) const CONFIG_KEYS: &[ConfigKey] = &[
    single_key(
        "database_url",
        "URL",
        None,
        "URL of the database that all nodes share: postgres://… or mysql://…",
    ),
    single_key("data", "DIR", Some("tasuki-data"), "Data directory of this node"),
    single_key("node", "NAME", None, "Name of this node [default: the host name]"),
    single_key(
        "listen",
        "ADDRESS",
        Some("127.0.0.1:7711"),
        "Listen address of the API; port 0 selects a free port",
    ),
    single_key(
        "cluster",
        "NAME",
        Some("tasuki"),
        "Name of the cluster; certificates and tokens are valid for one cluster only",
    ),
    single_key(
        "rpc_listen",
        "ADDRESS",
        Some("127.0.0.1:7712"),
        "Listen address for calls from other nodes; port 0 selects a free port",
    ),
    single_key(
        "rpc_address",
        "HOST:PORT",
        None,
        "Address that other nodes use to call this node [default: the address of --rpc-listen; required if that is a wildcard address]",
    ),
    single_key(
        "tls_dir",
        "DIR",
        Some("/etc/tasuki/tls"),
        "Directory that contains tls.crt, tls.key and ca.crt of this node",
    ),
    single_key(
        "tls_cert",
        "FILE",
        None,
        "Certificate file of this node [default: tls.crt in --tls-dir]",
    ),
    single_key(
        "tls_key",
        "FILE",
        None,
        "Key file of the certificate [default: tls.key in --tls-dir]",
    ),
    single_key(
        "tls_ca",
        "FILE",
        None,
        "Certificate file of the authority that signed the certificates of all nodes [default: ca.crt in --tls-dir]",
    ),
    single_key(
        "rpc_token_key",
        "FILE",
        None,
        "File with the key that signs calls between nodes; use it instead of certificates if a service mesh terminates TLS",
    ),
    single_key(
        "rpc_token_key_previous",
        "FILE",
        None,
        "File with a second key: this node also accepts calls that are signed with this key. Use it while you replace the key",
    ),
    single_key(
        "redis_url",
        "URL",
        None,
        "URL of Redis, which makes coordination faster: redis://…, rediss://…, redis+sentinel://… or redis+cluster://…",
    ),
    single_key("redis_prefix", "TEXT", Some("tasuki"), "Prefix of all Redis keys"),
    list_key(
        "label",
        "LABEL",
        "Label of this worker; jobs with labels run only on workers that have all of them",
    ),
    single_key(
        "slots",
        "NUMBER",
        None,
        "Number of slots for commands that the leader assigns; the worker has the same number in addition for commands that it claims [default: setting max_jobs_per_worker]",
    ),
    list_key("allow_program", "PROGRAM", "Program that this worker may run [default: any program]"),
    list_key("pass_env", "NAME", "Environment variable of this process that commands also receive"),
    single_key(
        "django_project",
        "DIR",
        None,
        "Django project directory, in which jobs of kind django run",
    ),
    single_key(
        "django_python",
        "PROGRAM",
        Some("python3"),
        "Python interpreter of the Django project",
    ),
    single_key(
        "django_settings",
        "MODULE",
        None,
        "DJANGO_SETTINGS_MODULE of the Django project [default: chosen by manage.py]",
    ),
    single_key(
        "drain",
        "DURATION",
        Some("30s"),
        "How long runs may continue after this node receives a stop signal; then they are stopped",
    ),
];

/// Where a configuration value comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ValueSource {
    Flag(String),
    Environment(String),
    File(PathBuf),
    Default,
}

impl fmt::Display for ValueSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag(flag) => write!(f, "--{flag}"),
            Self::Environment(name) => f.write_str(name),
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Default => f.write_str("default"),
        }
    }
}

/// The value of a configuration key and its source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ConfigValue {
    pub(crate) values: Vec<String>,
    pub(crate) source: ValueSource,
}

impl ConfigKey {
    fn flag(&self) -> String {
        self.name.replace('_', "-")
    }

    fn variable(&self) -> String {
        format!("TASUKI_{}", self.name.to_uppercase())
    }

    /// Returns `value` in a form that may be displayed: a URL may contain a password, which is removed.
    pub(crate) fn redact_value(&self, value: &str) -> String {
        match self.name.ends_with("_url") {
            true => database_access::redact_url(value),
            false => value.to_owned(),
        }
    }
}

/// The configuration flags of the command line.
#[derive(Debug, Clone, Default)]
pub(crate) struct ConfigFlags {
    values: BTreeMap<&'static str, Vec<String>>,
    config: Option<PathBuf>,
}

impl FromArgMatches for ConfigFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut values = BTreeMap::new();
        for key in CONFIG_KEYS {
            if let Some(given) = matches.get_many::<String>(key.name) {
                values.insert(key.name, given.cloned().collect());
            }
        }
        Ok(Self { values, config: matches.get_one::<PathBuf>("config").cloned() })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args for ConfigFlags {
    fn augment_args(command: Command) -> Command {
        let config = Arg::new("config")
            .long("config")
            .value_name("FILE")
            .value_parser(clap::value_parser!(PathBuf))
            .help(format!(
                "Configuration file (TOML) with any of the values below [env: TASUKI_CONFIG] [default: {DEFAULT_CONFIG_FILE}, if it exists]"
            ));
        CONFIG_KEYS.iter().fold(command.arg(config), |command, key| {
            let mut help = format!("{} [env: {}]", key.help, key.variable());
            if let Some(default) = key.default {
                help.push_str(&format!(" [default: {default}]"));
            }
            let arg = Arg::new(key.name).long(key.flag()).value_name(key.value_name);
            let several = " (repeatable; comma-separated in the environment)";
            command.arg(match key.list {
                true => arg.action(ArgAction::Append).help(help.replacen(
                    " [env",
                    &format!("{several} [env"),
                    1,
                )),
                false => arg.help(help),
            })
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

/// The configuration values of a node, merged from flags, environment, file and defaults.
pub(crate) struct MergedConfig {
    values: BTreeMap<&'static str, ConfigValue>,
}

impl MergedConfig {
    /// Merges all layers. `variable` reads an environment variable.
    pub(crate) fn read_and_merge(
        flags: &ConfigFlags,
        variable: impl Fn(&str) -> Option<OsString>,
    ) -> Result<Self, Failure> {
        let named = flags.config.clone().or_else(|| variable("TASUKI_CONFIG").map(PathBuf::from));
        let default_file = PathBuf::from(DEFAULT_CONFIG_FILE);
        let file = named.clone().unwrap_or_else(|| default_file.clone());
        let mut in_file = match named.is_some() || default_file.exists() {
            true => read_file(&file)?,
            false => BTreeMap::new(),
        };
        let mut values_by_key = BTreeMap::new();
        for key in CONFIG_KEYS {
            let flag = flags.values.get(key.name).cloned();
            let flag = flag.map(|values| (values, ValueSource::Flag(key.flag())));
            let environment = match variable(&key.variable()) {
                // An empty variable counts as unset, as in `TASUKI_X=${X:-}`.
                Some(value) if value.is_empty() => None,
                Some(value) => {
                    Some((parse_variable(key, value)?, ValueSource::Environment(key.variable())))
                }
                None => None,
            };
            let in_file =
                in_file.remove(key.name).map(|values| (values, ValueSource::File(file.clone())));
            let default = key.default.map(|value| (vec![value.to_owned()], ValueSource::Default));
            if let Some((values, source)) = flag.or(environment).or(in_file).or(default) {
                values_by_key.insert(key.name, ConfigValue { values, source });
            }
        }
        Ok(Self { values: values_by_key })
    }

    pub(crate) fn get(&self, name: &str) -> Option<&ConfigValue> {
        self.values.get(name)
    }

    /// The value as text, if the key has one.
    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        self.get(name)?.values.last().map(String::as_str)
    }

    pub(crate) fn path_value(&self, name: &str) -> Option<PathBuf> {
        self.text(name).map(PathBuf::from)
    }

    /// The values of a list key. `None`: the key is not set. A list that is set may be empty.
    pub(crate) fn find_list_values(&self, name: &str) -> Option<&[String]> {
        self.get(name).map(|found| &*found.values)
    }

    /// Parses the value of a key, if it is set. The error names the key, the value and its source.
    pub(crate) fn parse_value_of_key<T>(
        &self,
        name: &str,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Result<Option<T>, Failure> {
        let Some(found) = self.get(name) else { return Ok(None) };
        let Some(value) = found.values.last() else { return Ok(None) };
        let invalid =
            |why| Failure::bad_usage(format!("{name} = {value:?} ({}): {why}", found.source));
        parse(value).map(Some).map_err(invalid)
    }
}

fn parse_variable(key: &ConfigKey, value: OsString) -> Result<Vec<String>, Failure> {
    let Ok(value) = value.into_string() else {
        return Err(Failure::bad_usage(format!("{} is not UTF-8", key.variable())));
    };
    Ok(match key.list {
        true => value
            .split(',')
            .map(str::trim)
            .filter(|item| !item.is_empty())
            .map(str::to_owned)
            .collect(),
        false => vec![value],
    })
}

fn read_file(path: &Path) -> Result<BTreeMap<String, Vec<String>>, Failure> {
    let failure = |why: String| Failure::bad_usage(format!("{}: {why}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|error| failure(error.to_string()))?;
    // Only the parser's message and the line number: the line itself may contain a password.
    let document: DocumentMut = text.parse().map_err(|error: toml_edit::TomlError| {
        let line =
            error.span().map_or(0, |span| text[..span.start.min(text.len())].lines().count());
        failure(format!("invalid TOML in line {}: {}", line.max(1), error.message()))
    })?;
    let mut found = BTreeMap::new();
    for (name, item) in document.iter() {
        let Some(key) = CONFIG_KEYS.iter().find(|key| key.name == name) else {
            let names: Vec<&str> = CONFIG_KEYS.iter().map(|key| key.name).collect();
            return Err(failure(format!("unknown key {name:?}"))
                .hint(format!("known keys: {}", names.join(", "))));
        };
        let values = match (key.list, item) {
            (true, Item::Value(Value::Array(values))) => values.iter().map(scalar_text).collect(),
            (_, Item::Value(value)) => scalar_text(value).map(|value| vec![value]),
            (_, _) => None,
        };
        let expected = if key.list { "a string or a list of strings" } else { "a string" };
        found.insert(
            name.to_owned(),
            values.ok_or_else(|| failure(format!("{name} must be {expected}")))?,
        );
    }
    Ok(found)
}

/// The text of a string or an integer; other TOML values are not accepted.
fn scalar_text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.value().clone()),
        Value::Integer(number) => Some(number.value().to_string()),
        Value::Boolean(_)
        | Value::Float(_)
        | Value::Datetime(_)
        | Value::Array(_)
        | Value::InlineTable(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layers(
        flags: &[(&'static str, &str)],
        environment: &[(&str, &str)],
        file: &str,
    ) -> Result<MergedConfig, Failure> {
        let folder = std::env::temp_dir().join(format!("tasuki-layers-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("tasuki.toml");
        std::fs::write(&path, file).unwrap();
        let values = flags.iter().map(|(name, value)| (*name, vec![(*value).to_owned()])).collect();
        let flags = ConfigFlags { values, config: Some(path) };
        let read = MergedConfig::read_and_merge(&flags, |name| {
            let found = environment.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| OsString::from(value))
        });
        std::fs::remove_dir_all(folder).unwrap();
        read
    }

    #[test]
    fn flag_overrides_environment_overrides_file_overrides_default() {
        let file = "node = \"from-file\"\nslots = 3\nlabel = [\"a\", \"b\"]\n";
        let lookup = |flags, environment, name: &str| {
            let read = layers(flags, environment, file).unwrap();
            let found = read.get(name).cloned();
            found.map(|found| {
                (
                    found.values.join("+"),
                    matches!(found.source, ValueSource::File(_)),
                    found.source.to_string(),
                )
            })
        };
        let node = lookup(&[("node", "f")], &[("TASUKI_NODE", "e")], "node");
        assert_eq!(node, Some(("f".to_owned(), false, "--node".to_owned())));
        let node = lookup(&[], &[("TASUKI_NODE", "e")], "node").unwrap();
        assert_eq!((node.0.as_str(), node.2.as_str()), ("e", "TASUKI_NODE"));
        let node = lookup(&[], &[], "node").unwrap();
        assert!(node.0 == "from-file" && node.1);
        assert_eq!(lookup(&[], &[], "slots").unwrap().0, "3");
        assert_eq!(lookup(&[], &[], "label").unwrap().0, "a+b");
        assert_eq!(lookup(&[], &[("TASUKI_LABEL", "x, y,")], "label").unwrap().0, "x+y");
        assert_eq!(lookup(&[], &[], "drain").unwrap().2, "default");
        assert_eq!(lookup(&[], &[], "redis_url"), None);
    }

    #[test]
    fn invalid_values_are_refused_with_file_or_variable_and_without_secrets() {
        for (file, expected) in [
            ("nod = \"x\"", "unknown key \"nod\""),
            ("node = [\"x\"]", "node must be a string"),
            ("node = true", "node must be a string"),
            ("label = [1.5]", "label must be a string or a list of strings"),
            ("node = ", "TOML"),
            ("database_url = postgres://ann:s3cret@h/x", "TOML in line 1"),
        ] {
            let invalid = layers(&[], &[], file).err().expect("refused");
            assert!(invalid.message().contains(expected), "{}", invalid.message());
            assert!(invalid.message().contains("tasuki.toml"), "{}", invalid.message());
            assert!(!invalid.message().contains("s3cret"), "{}", invalid.message());
        }
        let read = layers(&[], &[("TASUKI_SLOTS", "many")], "").unwrap();
        let invalid = read.parse_value_of_key("slots", |flags| {
            flags.parse::<u32>().map_err(|error| error.to_string())
        });
        let invalid = invalid.expect_err("not a number");
        assert_eq!(
            invalid.message(),
            "slots = \"many\" (TASUKI_SLOTS): invalid digit found in string"
        );
    }
}
