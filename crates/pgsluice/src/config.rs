//! Where a setting's value comes from: flag, environment, file, options that an adopted
//! subscription has stored on the target, default.
//!
//! Each source gives texts by key. The strongest source that names a key decides it alone, lists
//! included. `settings::SettingsTable` then reads the texts of one subscription, so a file passes
//! the same parsers and gets the same messages as a flag.
//!
//! An empty environment variable counts as unset.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::slice;

use clap::ArgMatches;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;
use toml::de::{DeTable, DeValue};

use crate::failure::Failure;
use crate::settings::{Place, RelayTable, Setting, SettingsTable};

/// The settings of flags, environment and file.
#[derive(Debug)]
pub(crate) struct Config {
    settings: Vec<Setting>,
    given: Section,
    environment: Section,
    file: Option<File>,
    /// By subscription.
    stored: BTreeMap<String, Section>,
}

/// Texts by key, and the name of the place for messages.
#[derive(Debug, Default, Clone)]
struct Section {
    values: BTreeMap<String, Vec<OsString>>,
}

/// A setting from flags or environment, for the commands that messages print.
#[derive(Debug, Clone)]
pub(crate) struct Said {
    pub(crate) key: String,
    pub(crate) values: Vec<OsString>,
    pub(crate) by_flag: bool,
}

/// A configuration file as read.
#[derive(Debug)]
struct File {
    path: PathBuf,
    top: Section,
    subscriptions: Vec<Section>,
}

/// Which source a value came from.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Origin {
    Flag,
    Environment,
    File(PathBuf),
    Target,
}

impl Config {
    /// Gathers those of `settings` that `matches` and the environment have, and reads the file that
    /// one of them names.
    pub(crate) fn gather(
        settings: Vec<Setting>,
        matches: &ArgMatches,
        env: &dyn Fn(&str) -> Option<OsString>,
    ) -> anyhow::Result<Config> {
        let mut given = Section::default();
        let mut environment = Section::default();
        for setting in &settings {
            let key = setting.key.as_str();
            let present = matches.try_contains_id(key).unwrap_or(false)
                && matches.value_source(key) == Some(ValueSource::CommandLine);
            if present && let Some(raw) = matches.get_raw(key) {
                given.values.insert(key.to_owned(), raw.map(ToOwned::to_owned).collect());
            }
            let mut variable = None;
            for name in setting.variables() {
                let Some(value) = env(&name).filter(|value| !value.is_empty()) else { continue };
                if let Some(first) = variable.replace(name.clone()) {
                    let place = "environment".to_owned();
                    return Err(Failure::TwoNames { place, names: [first, name] }.into());
                }
                environment.values.insert(key.to_owned(), split_variable(setting, value));
            }
        }
        let mut config = Config { settings, given, environment, file: None, stored: BTreeMap::new() };
        let named = config.given.values.get("config").or_else(|| config.environment.values.get("config"));
        if let Some(path) = named.and_then(|values| values.first()).map(PathBuf::from) {
            let unread = |error| Failure::ConfigFile { path: path.clone(), error };
            let text = std::fs::read_to_string(&path).map_err(unread)?;
            config.file = Some(File::read(&path, &text, &config.settings)?);
        }
        Ok(config)
    }

    /// The settings of flags and environment, as given; a flag is stronger.
    pub(crate) fn said(&self) -> Vec<Said> {
        let said = |setting: &Setting| {
            let key = setting.key.clone();
            let flag = self.given.values.get(&key).map(|values| (values, true));
            let variable = || self.environment.values.get(&key).map(|values| (values, false));
            let (values, by_flag) = flag.or_else(variable)?;
            Some(Said { key, values: values.clone(), by_flag })
        };
        self.settings.iter().filter_map(said).collect()
    }

    /// Adds the settings that the target has stored for `subscription`. Only defaults are weaker.
    pub(crate) fn add_stored(&mut self, subscription: &str, values: BTreeMap<String, Vec<OsString>>) {
        self.stored.insert(subscription.to_owned(), Section { values });
    }

    /// The chosen subscriptions, each with all its settings: the named one, otherwise all of the
    /// file, otherwise the one made from flags and environment alone.
    pub(crate) fn subscriptions(&self) -> anyhow::Result<Vec<SettingsTable>> {
        let Some(file) = self.file.as_ref().filter(|file| !file.subscriptions.is_empty()) else {
            return Ok(vec![self.read(None, SettingsTable::read)?]);
        };
        let read = |section| self.read(Some(section), SettingsTable::read);
        let tables = file.subscriptions.iter().map(read);
        let tables = tables.collect::<anyhow::Result<Vec<_>>>()?;
        let wanted =
            self.given.values.get("subscription").or_else(|| self.environment.values.get("subscription"));
        let Some(wanted) = wanted.and_then(|values| values.first()) else {
            return Ok(tables);
        };
        let position = file.subscriptions.iter().position(|section| {
            section.values.get("subscription").is_some_and(|values| values.first() == Some(wanted))
        });
        let mut tables = tables;
        let not_there = || Failure::NotInFile {
            path: file.path.clone(),
            wanted: wanted.to_string_lossy().into_owned(),
            names: file.names(),
        };
        Ok(position.map(|position| vec![tables.swap_remove(position)]).ok_or_else(not_there)?)
    }

    /// All settings of a relay.
    pub(crate) fn relay(&self) -> anyhow::Result<RelayTable> {
        self.read(None, RelayTable::read)
    }

    /// All settings of one subscription or of a relay, as `read` has them from flags and values.
    fn read<T>(
        &self,
        section: Option<&Section>,
        read: fn(Vec<OsString>) -> Result<T, clap::Error>,
    ) -> anyhow::Result<T> {
        let mut words = Vec::new();
        for setting in &self.settings {
            let Some((values, origin)) = self.look_up(&setting.key, section) else { continue };
            let mut own: Vec<OsString> = Vec::new();
            for value in values {
                let mut word = OsString::from(setting.flag());
                word.push("=");
                word.push(value);
                own.push(word);
            }
            // Read alone first, so that a message can name the place of the text.
            if let Err(error) = read(own.clone())
                && error.kind() != ErrorKind::MissingRequiredArgument
            {
                return Err(refusal(setting, &origin, &error).into());
            }
            words.extend(own);
        }
        Ok(read(words).map_err(|error| Failure::Together(error.to_string()))?)
    }

    /// The strongest source's texts for `key`. A subscription's own name is
    /// never overridden: it only chooses.
    fn look_up<'a>(&'a self, key: &str, section: Option<&'a Section>) -> Option<(&'a Vec<OsString>, Origin)> {
        let from_file = || {
            let file = self.file.as_ref()?;
            let values = section.and_then(|own| own.values.get(key)).or_else(|| file.top.values.get(key))?;
            Some((values, Origin::File(file.path.clone())))
        };
        if key == "subscription" && section.is_some() {
            return from_file();
        }
        let flag = self.given.values.get(key).map(|values| (values, Origin::Flag));
        let variable = || self.environment.values.get(key).map(|values| (values, Origin::Environment));
        let stored = || {
            // Only the name tells whether settings are stored for this subscription.
            let (name, _) = (key != "subscription").then(|| self.look_up("subscription", section))??;
            let own = self.stored.get(name.first()?.to_str()?)?;
            Some((own.values.get(key)?, Origin::Target))
        };
        flag.or_else(variable).or_else(from_file).or_else(stored)
    }
}

/// A variable's text as values: a list is separated by commas.
fn split_variable(setting: &Setting, value: OsString) -> Vec<OsString> {
    match value.to_str() {
        Some(text) if setting.many => text.split(',').map(|part| OsString::from(part.trim())).collect(),
        _ => vec![value],
    }
}

/// Why clap refused a value, naming the place the value came from.
fn refusal(setting: &Setting, origin: &Origin, error: &clap::Error) -> Failure {
    let value = match error.get(ContextKind::InvalidValue) {
        Some(ContextValue::String(value)) => value.clone(),
        _ => String::new(),
    };
    let reason = match (std::error::Error::source(error), setting.words.is_empty()) {
        (_, false) => format!("expected one of {}", setting.words.join(", ")),
        (Some(source), _) => source.to_string(),
        (None, _) => error.kind().to_string(),
    };
    let place = match origin {
        Origin::Flag => setting.flag(),
        Origin::Environment => setting.variable(),
        Origin::File(path) => format!("{} in {}", setting.key, path.display()),
        Origin::Target => format!("{} of the native subscription", setting.key),
    };
    Failure::Value { value, place, reason }
}

/// A place in a file: the path and the line, counted from 1.
struct At<'a> {
    path: &'a Path,
    line: usize,
}

impl fmt::Display for At<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, line {}", self.path.display(), self.line)
    }
}

impl File {
    /// Reads `text`, and refuses keys that the table does not know.
    fn read(path: &Path, text: &str, settings: &[Setting]) -> anyhow::Result<File> {
        let at = |offset: usize| At { path, line: 1 + text[..offset.min(text.len())].matches('\n').count() };
        let parsed = DeTable::parse(text).map_err(|error| {
            let place = at(error.span().map_or(0, |span| span.start)).to_string();
            Failure::Toml { place, message: error.message().to_owned() }
        })?;
        let mut file = File { path: path.to_owned(), top: Section::default(), subscriptions: Vec::new() };
        for (key, value) in parsed.get_ref() {
            let place = at(key.span().start);
            let key = key.get_ref().as_ref();
            match value.get_ref() {
                DeValue::Array(tables)
                    if key == "subscription"
                        && settings.iter().any(|setting| setting.key == key)
                        && tables.iter().all(|item| item.get_ref().is_table()) =>
                {
                    for table in tables.iter().filter_map(|item| item.get_ref().as_table()) {
                        file.subscriptions.push(Section::read_own(table, &at, settings)?);
                    }
                }
                value => file.top.insert(key, value, &place, settings, false)?,
            }
        }
        file.check_names(path)?;
        Ok(file)
    }

    /// The names of the file's `[[subscription]]` tables.
    fn names(&self) -> Vec<String> {
        let own = |section: &Section| {
            section.values.get("subscription").and_then(|values| values.first()?.to_str().map(str::to_owned))
        };
        self.subscriptions.iter().filter_map(own).collect()
    }

    /// Every `[[subscription]]` has a name of its own.
    fn check_names(&self, path: &Path) -> anyhow::Result<()> {
        let mut names = self.names();
        if names.len() < self.subscriptions.len() {
            return Err(Failure::Unnamed { path: path.to_owned() }.into());
        }
        if !names.is_empty() && self.top.values.contains_key("subscription") {
            return Err(Failure::TwoForms { path: path.to_owned() }.into());
        }
        names.sort_unstable();
        match names.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(Failure::NamedTwice { path: path.to_owned(), name: pair[0].clone() }.into()),
            None => Ok(()),
        }
    }
}

impl Section {
    /// One `[[subscription]]` table.
    fn read_own<'a>(
        table: &DeTable<'_>,
        at: &dyn Fn(usize) -> At<'a>,
        settings: &[Setting],
    ) -> anyhow::Result<Section> {
        let mut own = Section::default();
        for (key, value) in table {
            own.insert(key.get_ref().as_ref(), value.get_ref(), &at(key.span().start), settings, true)?;
        }
        Ok(own)
    }

    /// One line of a file: a known key at an allowed place, and its texts. `own` is true inside a
    /// `[[subscription]]` table.
    fn insert(
        &mut self,
        key: &str,
        value: &DeValue<'_>,
        at: &At<'_>,
        settings: &[Setting],
        own: bool,
    ) -> anyhow::Result<()> {
        let written = |setting: &Setting| match setting.place() {
            Place::Nowhere => Vec::new(),
            Place::Name if own => vec!["name".to_owned()],
            _ => [slice::from_ref(&setting.key), &setting.aliases].concat(),
        };
        let is_it = |setting: &&Setting| written(setting).iter().any(|name| name == key);
        let Some(setting) = settings.iter().find(is_it) else {
            let known: Vec<String> = settings.iter().flat_map(written).collect();
            let suggestion = suggestion(key, known);
            return Err(Failure::UnknownKey { place: at.to_string(), key: key.to_owned(), suggestion }.into());
        };
        if own && setting.place() == Place::TopLevel {
            return Err(Failure::ProcessKey { place: at.to_string(), key: key.to_owned() }.into());
        }
        let texts = match value {
            DeValue::Array(items)
                if setting.key == CONFLICT && items.iter().any(|item| item.get_ref().is_table()) =>
            {
                let rules = items.iter().map(|item| rule_of(item.get_ref()));
                let refused = |reason| Failure::ConflictTable { place: at.to_string(), reason };
                Some(rules.collect::<Result<Vec<_>, _>>().map_err(refused)?)
            }
            DeValue::Array(items) if setting.many => {
                items.iter().map(|item| text_of(item.get_ref())).collect()
            }
            value => text_of(value).map(|text| vec![text]),
        };
        let Some(texts) = texts else {
            let (place, key) = (at.to_string(), key.to_owned());
            return Err(Failure::WrongType { place, key, many: setting.many }.into());
        };
        // TOML itself refuses the same key twice.
        if self.values.insert(setting.key.clone(), texts).is_some() {
            let other = written(setting).into_iter().find(|name| name != key);
            let names = [key.to_owned(), other.unwrap_or_default()];
            return Err(Failure::TwoNames { place: at.to_string(), names }.into());
        }
        Ok(())
    }
}

/// The setting whose values may be tables.
const CONFLICT: &str = "conflict";

/// One `[[subscription.conflict]]` as the command line would have it.
fn rule_of(rule: &DeValue<'_>) -> Result<OsString, String> {
    let Some(table) = rule.as_table() else {
        return text_of(rule).ok_or_else(|| "expected a table, or TYPE=RESOLUTION".to_owned());
    };
    let known = ["table", "type", "resolution"];
    if let Some((key, _)) = table.iter().find(|(key, _)| !known.contains(&key.get_ref().as_ref())) {
        return Err(format!("unknown key \"{}\"; it may have {}", key.get_ref(), known.join(", ")));
    }
    let text = |key: &str| match table.get(key).map(|value| value.get_ref()) {
        Some(DeValue::String(text)) => Ok(Some(text.to_string())),
        Some(_) => Err(format!("{key} must be text")),
        None => Ok(None),
    };
    let needed = |key: &str| text(key)?.ok_or_else(|| format!("{key} is missing"));
    let of = text("table")?.map(|table| format!(":{table}")).unwrap_or_default();
    Ok(format!("{}={}{of}", needed("type")?, needed("resolution")?).into())
}

/// A scalar as the command line would have it.
fn text_of(value: &DeValue<'_>) -> Option<OsString> {
    let text = match value {
        DeValue::String(text) => text.to_string(),
        DeValue::Integer(number) => number.as_str().to_owned(),
        DeValue::Float(number) => number.as_str().to_owned(),
        DeValue::Boolean(true) => "on".to_owned(),
        DeValue::Boolean(false) => "off".to_owned(),
        _ => return None,
    };
    Some(text.into())
}

/// The known key that is most similar to `key`, if one is similar.
fn suggestion(key: &str, known: Vec<String>) -> Option<String> {
    let scored = known.into_iter().map(|candidate| (strsim::jaro_winkler(key, &candidate), candidate));
    let (score, candidate) = scored.max_by(|left, right| left.0.total_cmp(&right.0))?;
    (score > 0.7).then_some(candidate)
}

#[cfg(test)]
mod tests;
