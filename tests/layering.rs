//! Keeps the layers apart: who may import whom inside the package, and which crate has its home where.
//!
//! The compiler would enforce this between crates; within one package a test has to. It reads every file below `src` with
//! a small lexer (comments and strings do not count), collects the paths that start at the crate's root or in another
//! crate, and compares them with the two tables below. `super::super` that climbs to the root counts as `crate`. What it
//! cannot see is a type that travels without being named, or that a home re-exports; review has to.
//!
//! Code under `#[cfg(test)]` may use `crate::testing` and any crate besides; other layers it may not either.
#![cfg(test)]

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

/// What one top module may import of the others.
enum Imports {
    /// These modules, or only what lies below these paths.
    Only(&'static [&'static str]),
    /// Composition: everything but the modules with listed importers.
    Everything,
}

/// The import table. A module may always import from itself; a top module that is missing here fails the test.
const LAYERS: &[(&str, Imports)] = &[
    ("model", Imports::Only(&[])),
    ("crash_point", Imports::Only(&[])),
    ("engine", Imports::Only(&["model", "crash_point"])),
    (
        "kafka",
        Imports::Only(&["model", "engine::ports", "engine::error"]),
    ),
    (
        "sinks",
        Imports::Only(&[
            "model",
            "engine::ports",
            "engine::error",
            "kafka",
            "crash_point",
        ]),
    ),
    (
        "store",
        Imports::Only(&["model", "engine::ports", "engine::error"]),
    ),
    (
        "service",
        Imports::Only(&["model", "engine", "store", "crash_point"]),
    ),
    ("http", Imports::Only(&["model", "service"])),
    ("app", Imports::Everything),
    ("dev", Imports::Everything),
    ("config", Imports::Everything),
    ("telemetry", Imports::Everything),
    ("testing", Imports::Everything),
    ("main", Imports::Everything),
    ("cli", Imports::Everything),
    ("lib", Imports::Everything),
];

/// Modules that not even every composing module may import, with those that may.
const LISTED_IMPORTERS: &[(&str, &[&str])] =
    &[("config", &["app", "cli", "dev", "main", "lib", "telemetry"])];

/// Crates that only these places may name: a top module, or `module/file` for one file of it. Other crates are free,
/// except in `model`.
const HOMES: &[(&str, &[&str])] = &[
    ("rdkafka", &["kafka", "sinks/kafka", "dev"]),
    (
        "rdkafka_ext",
        &["kafka", "sinks/kafka", "dev", "crash_point"],
    ),
    ("rdkafka_sys", &["kafka", "sinks/kafka", "dev"]),
    ("handover_slot", &["engine", "testing"]),
    ("sqlx", &["store", "sinks/postgres", "dev"]),
    ("axum", &["http", "app", "dev"]),
    ("tower", &["http", "app", "dev"]),
    ("tower_http", &["http", "app", "dev"]),
    ("utoipa", &["http", "app", "dev", "model"]),
    ("utoipa_axum", &["http", "app", "dev"]),
    ("utoipa_swagger_ui", &["http", "app", "dev"]),
];

/// All that `model` may name: values and their representation, nothing that waits, reads a clock or opens a connection.
const CRATES_OF_MODEL: &[&str] = &[
    "base64",
    "bytes",
    "chrono",
    "regex",
    "serde",
    "serde_json",
    "thiserror",
    "ulid",
    "utoipa",
    "uuid",
];

// ---------------------------------------------------------------------------------------------------------------------
// The rules

#[derive(Debug)]
struct Violation {
    file: String,
    line: usize,
    import: String,
    rule: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "{}:{}: `{}`: {}",
            self.file, self.line, self.import, self.rule
        )
    }
}

/// Checks one file; `path` is relative to the package (`src/engine/fetcher.rs`), `crates` the names of the dependencies.
fn check(path: &str, source: &str, crates: &BTreeSet<String>) -> Vec<Violation> {
    let place = Place::of(path);
    let violation = |line, import: String, rule| Violation {
        file: path.to_owned(),
        line,
        import,
        rule,
    };
    let Some((_, allowed)) = LAYERS.iter().find(|(module, _)| *module == place.module) else {
        let rule = format!(
            "top module `{}` is not in the import table of tests/layering.rs",
            place.module
        );
        return vec![violation(1, format!("mod {}", place.module), rule)];
    };
    paths_of(source, place.depth, place.is_test)
        .into_iter()
        .filter_map(|path| {
            let broken_rule = match path.segments.split_first() {
                Some((root, rest)) if root == "crate" => {
                    broken_by_module(&place, allowed, rest, path.is_test)
                }
                Some((name, _)) if crates.contains(name) => {
                    broken_by_crate(&place, name, path.is_test)
                }
                _ => None,
            };
            broken_rule.map(|rule| violation(path.line, path.segments.join("::"), rule))
        })
        .collect()
}

/// The rule that importing `crate::<path>` breaks, if any.
fn broken_by_module(
    place: &Place,
    allowed: &Imports,
    path: &[String],
    is_test: bool,
) -> Option<String> {
    let importer = place.module.as_str();
    let imported = path.first().map_or("*", String::as_str);
    if imported == importer || (is_test && imported == "testing") {
        return None;
    }
    let importers = LISTED_IMPORTERS
        .iter()
        .find(|(module, _)| *module == imported);
    match allowed {
        Imports::Everything => match importers {
            Some((_, importers)) if !importers.contains(&importer) => Some(format!(
                "only {} may import `{imported}`",
                importers.join(", ")
            )),
            _ => None,
        },
        Imports::Only(prefixes) => {
            let is_allowed = prefixes.iter().any(|prefix| {
                prefix
                    .split("::")
                    .eq(path.iter().take(prefix.split("::").count()))
            });
            (!is_allowed).then(|| match prefixes {
                [] => format!("`{importer}` may import no other module"),
                _ => format!("`{importer}` may import only {}", prefixes.join(", ")),
            })
        }
    }
}

/// The rule that naming a dependency breaks, if any.
fn broken_by_crate(place: &Place, name: &str, is_test: bool) -> Option<String> {
    if is_test {
        return None;
    }
    if place.module == "model" && !CRATES_OF_MODEL.contains(&name) {
        return Some(format!(
            "`model` may name only {}",
            CRATES_OF_MODEL.join(", ")
        ));
    }
    let (_, homes) = HOMES.iter().find(|(home, _)| *home == name)?;
    let is_home = homes
        .iter()
        .any(|home| *home == place.module || *home == place.file);
    (!is_home).then(|| {
        format!(
            "the crate `{name}` may be named only in {}",
            homes.join(", ")
        )
    })
}

/// Where a file stands in the tree of modules.
struct Place {
    /// Top module: `engine`.
    module: String,
    /// Top module and the file or folder below it: `sinks/kafka`.
    file: String,
    /// How many `super` lead from the file to the crate's root.
    depth: usize,
    /// Whether the whole file is test code, by the convention of its name.
    is_test: bool,
}

impl Place {
    fn of(path: &str) -> Self {
        let path = path.strip_prefix("src/").unwrap_or(path);
        let mut segments: Vec<&str> = path
            .strip_suffix(".rs")
            .unwrap_or(path)
            .split('/')
            .collect();
        if segments.len() > 1 && segments.last() == Some(&"mod") {
            segments.pop();
        }
        let is_root = matches!(segments.as_slice(), ["lib" | "main"]);
        Self {
            module: segments[0].to_owned(),
            file: segments
                .iter()
                .take(2)
                .copied()
                .collect::<Vec<_>>()
                .join("/"),
            depth: if is_root { 0 } else { segments.len() },
            is_test: segments.iter().skip(1).any(|segment| *segment == "tests"),
        }
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Reading the paths of a file

/// A path that starts at the crate's root (first segment `crate`) or with a name that may be a crate's.
#[derive(Debug, PartialEq)]
struct FoundPath {
    line: usize,
    segments: Vec<String>,
    is_test: bool,
}

#[derive(Clone, Debug, PartialEq)]
enum Token {
    Name(String),
    /// `::`
    Separator,
    Punctuation(char),
    /// A string literal, of interest only when it holds a path, as in serde's attributes.
    Text(String),
}

/// Walks the tokens, with a stack of the braces that are open: a module's brace deepens `super`, and a brace behind
/// `#[cfg(test)]` makes test code.
struct Reader {
    tokens: Vec<(usize, Token)>,
    position: usize,
    file_depth: usize,
    file_is_test: bool,
    braces: Vec<Brace>,
    /// An attribute `#[cfg(test)]` was read, and its item has not begun a body yet.
    test_item: bool,
    found: Vec<FoundPath>,
}

struct Brace {
    is_module: bool,
    is_test: bool,
}

fn paths_of(source: &str, file_depth: usize, file_is_test: bool) -> Vec<FoundPath> {
    let mut reader = Reader {
        tokens: tokens_of(source),
        position: 0,
        file_depth,
        file_is_test,
        braces: Vec::new(),
        test_item: false,
        found: Vec::new(),
    };
    reader.read();
    reader.found
}

impl Reader {
    fn read(&mut self) {
        while let Some((line, token)) = self.tokens.get(self.position).cloned() {
            match token {
                Token::Punctuation('{') => self.open_brace(),
                Token::Punctuation('}') => {
                    self.braces.pop();
                }
                // The item behind the attribute had no body: `#[cfg(test)] mod tests;`, `#[cfg(test)] use ...;`.
                Token::Punctuation(';') => self.test_item = false,
                Token::Punctuation('#') if self.is_cfg_test() => self.test_item = true,
                Token::Text(text) if text.starts_with("crate::") => {
                    let segments = text.split("::").map(str::to_owned).collect();
                    self.report(line, segments);
                }
                Token::Name(name) if name == "use" && !self.is_at(1, &Token::Punctuation('<')) => {
                    self.position += 1;
                    self.use_tree(Vec::new());
                    continue;
                }
                Token::Name(_) if !self.is_inner_segment() && self.is_at(1, &Token::Separator) => {
                    self.path(line);
                    continue;
                }
                Token::Name(name) if name == "crate" && self.is_extern_crate() => {
                    if let Some((line, Token::Name(name))) =
                        self.tokens.get(self.position + 1).cloned()
                    {
                        self.report(line, vec![name]);
                    }
                }
                Token::Name(_) | Token::Punctuation(_) | Token::Separator | Token::Text(_) => {}
            }
            self.position += 1;
        }
    }

    fn is_at(&self, distance: usize, token: &Token) -> bool {
        self.tokens
            .get(self.position + distance)
            .is_some_and(|(_, found)| found == token)
    }

    fn back(&self, distance: usize) -> Option<&Token> {
        self.tokens
            .get(self.position.checked_sub(distance)?)
            .map(|(_, token)| token)
    }

    /// Whether the name here continues a path or a call (`a::here`, `a.here`), as opposed to `::here` at a path's start.
    fn is_inner_segment(&self) -> bool {
        match self.back(1) {
            Some(Token::Separator) => {
                matches!(self.back(2), Some(Token::Name(_) | Token::Punctuation('>')))
            }
            Some(Token::Punctuation('.')) => !matches!(self.back(2), Some(Token::Punctuation('.'))),
            _ => false,
        }
    }

    fn is_extern_crate(&self) -> bool {
        matches!(self.back(1), Some(Token::Name(name)) if name == "extern")
    }

    fn is_cfg_test(&self) -> bool {
        let name = |text: &str| Token::Name(text.to_owned());
        let attribute = [
            Token::Punctuation('['),
            name("cfg"),
            Token::Punctuation('('),
            name("test"),
            Token::Punctuation(')'),
            Token::Punctuation(']'),
        ];
        attribute
            .iter()
            .enumerate()
            .all(|(index, token)| self.is_at(index + 1, token))
    }

    fn open_brace(&mut self) {
        // `mod name {`; `r#mod` is lexed as a plain name and cannot stand there.
        let is_module = matches!(self.back(2), Some(Token::Name(keyword)) if keyword == "mod");
        let is_test = self.test_item || self.braces.last().is_some_and(|brace| brace.is_test);
        self.test_item = false;
        self.braces.push(Brace { is_module, is_test });
    }

    /// Reads `a::b::c` outside of `use`.
    fn path(&mut self, line: usize) {
        let mut segments = Vec::new();
        while let Some((_, Token::Name(name))) = self.tokens.get(self.position) {
            segments.push(name.clone());
            self.position += 1;
            if !self.is_at(0, &Token::Separator) {
                break;
            }
            self.position += 1;
        }
        self.report(line, segments);
    }

    /// Reads one tree of `use`: `a::b`, `a::{b, c::d as e}`, `a::*`; each leaf is a path.
    fn use_tree(&mut self, mut segments: Vec<String>) {
        let mut line = 0;
        while let Some((here, token)) = self.tokens.get(self.position).cloned() {
            match token {
                Token::Name(name) if name == "as" => {
                    self.position += 2;
                    break;
                }
                Token::Name(name) => {
                    line = here;
                    segments.push(name);
                }
                Token::Punctuation('*') => {
                    line = here;
                    segments.push("*".to_owned());
                }
                Token::Separator => {}
                Token::Punctuation('{') => {
                    self.position += 1;
                    self.use_group(&segments);
                    return;
                }
                Token::Punctuation(_) | Token::Text(_) => break,
            }
            self.position += 1;
        }
        self.report(line, segments);
    }

    fn use_group(&mut self, prefix: &[String]) {
        while let Some((_, token)) = self.tokens.get(self.position) {
            match token {
                Token::Punctuation('}') => {
                    self.position += 1;
                    return;
                }
                Token::Punctuation(',') => self.position += 1,
                _ => {
                    let before = self.position;
                    self.use_tree(prefix.to_vec());
                    // Only source that does not compile gets here without moving on.
                    self.position = self.position.max(before + 1);
                }
            }
        }
    }

    /// Resolves `self` and `super`; keeps paths from the root and those that may name a crate.
    fn report(&mut self, line: usize, mut segments: Vec<String>) {
        segments.retain(|segment| segment != "self");
        let supers = segments
            .iter()
            .take_while(|segment| *segment == "super")
            .count();
        if supers > 0 {
            let inner_modules = self.braces.iter().filter(|brace| brace.is_module).count();
            if supers < self.file_depth + inner_modules {
                return;
            }
            segments.splice(..supers, ["crate".to_owned()]);
        }
        let is_test = self.file_is_test
            || self.test_item
            || self.braces.last().is_some_and(|brace| brace.is_test);
        self.found.push(FoundPath {
            line,
            segments,
            is_test,
        });
    }
}

/// Splits source into names, `::`, punctuation and strings; drops comments, characters, lifetimes and numbers.
fn tokens_of(source: &str) -> Vec<(usize, Token)> {
    let chars: Vec<char> = source.chars().collect();
    let at = |index: usize| chars.get(index).copied().unwrap_or('\0');
    let is_name = |c: char| c == '_' || c.is_alphanumeric();
    let mut tokens = Vec::new();
    let mut line = 1;
    let mut position = 0;
    while position < chars.len() {
        let start = position;
        match at(position) {
            '/' if at(position + 1) == '/' => {
                while position < chars.len() && at(position) != '\n' {
                    position += 1;
                }
            }
            '/' if at(position + 1) == '*' => position = end_of_comment(&chars, position),
            '"' => {
                position = end_of_string(&chars, position);
                let text = chars[start + 1..(position - 1).max(start + 1)]
                    .iter()
                    .collect();
                tokens.push((line, Token::Text(text)));
            }
            '\'' => position = end_of_quote(&chars, position),
            'r' | 'b' | 'c' if starts_raw_string(&chars, position) => {
                position = end_of_raw_string(&chars, position);
            }
            'r' if at(position + 1) == '#' && is_name(at(position + 2)) => position += 2,
            ':' if at(position + 1) == ':' => {
                tokens.push((line, Token::Separator));
                position += 2;
            }
            c if c.is_ascii_digit() => {
                while is_name(at(position)) {
                    position += 1;
                }
            }
            c if is_name(c) => {
                while is_name(at(position)) {
                    position += 1;
                }
                tokens.push((line, Token::Name(chars[start..position].iter().collect())));
            }
            c => {
                if !c.is_whitespace() {
                    tokens.push((line, Token::Punctuation(c)));
                }
                position += 1;
            }
        }
        line += chars[start..position]
            .iter()
            .filter(|c| **c == '\n')
            .count();
    }
    tokens
}

fn end_of_comment(chars: &[char], start: usize) -> usize {
    let mut depth = 0;
    let mut position = start;
    while position < chars.len() {
        match chars.get(position..position + 2) {
            Some(['/', '*']) => depth += 1,
            Some(['*', '/']) => depth -= 1,
            _ => {
                position += 1;
                continue;
            }
        }
        position += 2;
        if depth == 0 {
            return position;
        }
    }
    chars.len()
}

fn end_of_string(chars: &[char], start: usize) -> usize {
    let mut position = start + 1;
    while let Some(c) = chars.get(position) {
        position += match c {
            '\\' => 2,
            '"' => return position + 1,
            _ => 1,
        };
    }
    chars.len()
}

/// Of a character literal, or of the quote alone for a lifetime or a label.
fn end_of_quote(chars: &[char], start: usize) -> usize {
    match chars.get(start + 1..start + 3) {
        Some(['\\', _]) => {
            let mut position = start + 3;
            while chars.get(position).is_some_and(|c| *c != '\'') {
                position += 1;
            }
            (position + 1).min(chars.len())
        }
        Some([_, '\'']) => start + 3,
        _ => start + 1,
    }
}

fn starts_raw_string(chars: &[char], start: usize) -> bool {
    if start > 0 && (chars[start - 1] == '_' || chars[start - 1].is_alphanumeric()) {
        return false;
    }
    let prefix: String = chars[start..]
        .iter()
        .take_while(|c| c.is_ascii_alphabetic())
        .collect();
    let hashes = chars[start + prefix.len()..]
        .iter()
        .take_while(|c| **c == '#')
        .count();
    matches!(prefix.as_str(), "r" | "br" | "cr")
        && chars.get(start + prefix.len() + hashes) == Some(&'"')
}

fn end_of_raw_string(chars: &[char], start: usize) -> usize {
    let quote = start + chars[start..].iter().take_while(|c| **c != '"').count();
    let hashes = chars[start..quote].iter().filter(|c| **c == '#').count();
    let mut position = quote + 1;
    while position < chars.len() {
        let closes = chars[position] == '"'
            && chars[position + 1..]
                .iter()
                .take_while(|c| **c == '#')
                .count()
                >= hashes;
        if closes {
            return position + 1 + hashes;
        }
        position += 1;
    }
    chars.len()
}

// ---------------------------------------------------------------------------------------------------------------------
// The package itself

fn package_root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The dependencies of the package, as code names them.
fn dependencies() -> BTreeSet<String> {
    let manifest =
        fs::read_to_string(package_root().join("Cargo.toml")).expect("the package's manifest");
    let manifest: toml::Table = manifest.parse().expect("a manifest that cargo accepts");
    let dependencies = manifest["dependencies"]
        .as_table()
        .expect("a table of dependencies");
    dependencies
        .keys()
        .map(|name| name.replace('-', "_"))
        .collect()
}

fn rust_files(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a readable folder") {
        let path = entry.expect("a readable entry").path();
        if path.is_dir() {
            rust_files(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}

#[test]
fn every_import_follows_the_table() {
    let crates = dependencies();
    let mut files = Vec::new();
    rust_files(&package_root().join("src"), &mut files);
    files.sort();
    assert!(
        files.iter().any(|file| file.ends_with("src/lib.rs")),
        "the walk missed the sources"
    );
    let violations: Vec<String> = files
        .iter()
        .flat_map(|file| {
            let relative = file
                .strip_prefix(package_root())
                .expect("a file of the package");
            let source = fs::read_to_string(file).expect("a readable source");
            check(&relative.to_string_lossy(), &source, &crates)
        })
        .map(|violation| violation.to_string())
        .collect();
    assert!(
        violations.is_empty(),
        "{} imports break the layers:\n{}",
        violations.len(),
        violations.join("\n")
    );
}

#[test]
fn the_tables_name_only_what_exists() {
    let crates = dependencies();
    let named = HOMES
        .iter()
        .map(|(name, _)| *name)
        .chain(CRATES_OF_MODEL.iter().copied());
    // Reached through `rdkafka` today; its home is stated before anybody needs it.
    let unknown: Vec<&str> = named
        .filter(|name| !crates.contains(*name) && *name != "rdkafka_sys")
        .collect();
    assert!(unknown.is_empty(), "not dependencies: {unknown:?}");
}

// ---------------------------------------------------------------------------------------------------------------------
// The checker itself

/// What the checker says of one small source, one line a violation.
#[track_caller]
fn assert_violations(path: &str, source: &str, expected: &[&str]) {
    let mut crates: BTreeSet<String> = HOMES.iter().map(|(name, _)| (*name).to_owned()).collect();
    crates.extend(["serde", "tokio", "tracing"].map(str::to_owned));
    let found: Vec<String> = check(path, source, &crates)
        .iter()
        .map(|violation| format!("{} {}", violation.line, violation.import))
        .collect();
    assert_eq!(found, expected, "in {path}:\n{source}");
}

#[test]
fn allowed_imports_pass() {
    assert_violations(
        "src/model/offset.rs",
        "use serde::Serialize;\nuse utoipa::ToSchema;\nuse super::ids::JobName;",
        &[],
    );
    assert_violations(
        "src/engine/fetcher.rs",
        "use crate::model::Offset;\nuse handover_slot::channel;\nuse tokio::time;",
        &[],
    );
    assert_violations(
        "src/kafka/mod.rs",
        "use crate::engine::ports::{Consumer, BrokerAdmin};\nuse rdkafka::Message;",
        &[],
    );
    assert_violations(
        "src/sinks/kafka.rs",
        "use crate::kafka::client_config;\nuse rdkafka_ext::Batch;",
        &[],
    );
    assert_violations("src/sinks/postgres.rs", "use sqlx::PgPool;", &[]);
    assert_violations(
        "src/service/jobs.rs",
        "use crate::{engine::JobHandle, model::*, store::Store};",
        &[],
    );
    assert_violations(
        "src/http/jobs.rs",
        "use crate::service::JobService;\nuse axum::Json;",
        &[],
    );
    assert_violations(
        "src/app.rs",
        "use crate::{config::Config, http, kafka, service, sinks, store};",
        &[],
    );
    assert_violations(
        "src/main.rs",
        "use handover::config::Config;\nfn main() { handover::run() }",
        &[],
    );
}

#[test]
fn each_layer_is_held_to_its_row() {
    assert_violations(
        "src/model/job.rs",
        "use crate::engine::JobError;",
        &["1 crate::engine::JobError"],
    );
    assert_violations(
        "src/model/job.rs",
        "use tokio::time::Instant;",
        &["1 tokio::time::Instant"],
    );
    assert_violations(
        "src/engine/ports.rs",
        "use crate::store::Store;",
        &["1 crate::store::Store"],
    );
    assert_violations(
        "src/engine/ports.rs",
        "use crate::kafka;",
        &["1 crate::kafka"],
    );
    assert_violations(
        "src/kafka/admin.rs",
        "use crate::engine::Fetcher;",
        &["1 crate::engine::Fetcher"],
    );
    assert_violations(
        "src/kafka/admin.rs",
        "use crate::engine;",
        &["1 crate::engine"],
    );
    assert_violations(
        "src/sinks/log.rs",
        "use crate::store::Store;",
        &["1 crate::store::Store"],
    );
    assert_violations(
        "src/store/jobs.rs",
        "use crate::service::X;",
        &["1 crate::service::X"],
    );
    assert_violations(
        "src/service/jobs.rs",
        "use crate::http::Problem;",
        &["1 crate::http::Problem"],
    );
    assert_violations(
        "src/service/jobs.rs",
        "use crate::kafka::Admin;",
        &["1 crate::kafka::Admin"],
    );
    assert_violations(
        "src/http/jobs.rs",
        "use crate::store::Store;",
        &["1 crate::store::Store"],
    );
    assert_violations(
        "src/http/jobs.rs",
        "use crate::engine::JobHandle;",
        &["1 crate::engine::JobHandle"],
    );
}

#[test]
fn configuration_is_read_by_composition_only() {
    assert_violations(
        "src/http/mod.rs",
        "use crate::config::Config;",
        &["1 crate::config::Config"],
    );
    assert_violations(
        "src/testing/mod.rs",
        "use crate::config::Config;",
        &["1 crate::config::Config"],
    );
    assert_violations("src/telemetry.rs", "use crate::config::Config;", &[]);
}

#[test]
fn each_crate_is_held_to_its_home() {
    assert_violations(
        "src/engine/mod.rs",
        "use rdkafka::Message;",
        &["1 rdkafka::Message"],
    );
    assert_violations(
        "src/sinks/log.rs",
        "use rdkafka::Message;",
        &["1 rdkafka::Message"],
    );
    assert_violations("src/sinks/log.rs", "use sqlx::PgPool;", &["1 sqlx::PgPool"]);
    assert_violations(
        "src/service/jobs.rs",
        "fn f() { sqlx::query(\"\") }",
        &["1 sqlx::query"],
    );
    assert_violations(
        "src/service/mod.rs",
        "fn f() -> axum::Json<()> {}",
        &["1 axum::Json"],
    );
    assert_violations(
        "src/http/mod.rs",
        "#[derive(sqlx::FromRow)]\nstruct Row;",
        &["1 sqlx::FromRow"],
    );
    assert_violations(
        "src/store/jobs.rs",
        "use utoipa::ToSchema;",
        &["1 utoipa::ToSchema"],
    );
    assert_violations(
        "src/kafka/mod.rs",
        "use handover_slot::channel;",
        &["1 handover_slot::channel"],
    );
    assert_violations("src/engine/mod.rs", "extern crate sqlx;", &["1 sqlx"]);
    assert_violations("src/engine/mod.rs", "use sqlx;", &["1 sqlx"]);
}

#[test]
fn an_unknown_top_module_must_enter_the_table_first() {
    assert_violations("src/helpers.rs", "", &["1 mod helpers"]);
    assert_violations("src/bin/tool.rs", "", &["1 mod bin"]);
}

#[test]
fn every_way_to_write_an_import_is_seen() {
    let path = "src/engine/job_task.rs";
    let cases: &[(&str, &[&str])] = &[
        (
            "use crate::{\n    model::Offset,\n    store::{Store, jobs},\n    http,\n};",
            &[
                "3 crate::store::Store",
                "3 crate::store::jobs",
                "4 crate::http",
            ],
        ),
        (
            "pub(crate) use crate::store::Store as S;",
            &["1 crate::store::Store"],
        ),
        ("use crate::*;", &["1 crate::*"]),
        ("use crate as root;", &["1 crate"]),
        (
            "use {crate::http::X, sqlx::PgPool};",
            &["1 crate::http::X", "1 sqlx::PgPool"],
        ),
        ("use ::sqlx::PgPool;", &["1 sqlx::PgPool"]),
        (
            "use super::super::store::Store;",
            &["1 crate::store::Store"],
        ),
        (
            "mod inner { use super::super::super::store::Store; }",
            &["1 crate::store::Store"],
        ),
        (
            "fn f(s: &crate::store::Store) {}",
            &["1 crate::store::Store"],
        ),
        ("fn f() { ::sqlx::query(); }", &["1 sqlx::query"]),
        (
            "type T = Vec<crate::store::Store>;",
            &["1 crate::store::Store"],
        ),
        (
            "macro_rules! m { () => { $crate::store::x() } }",
            &["1 crate::store::x"],
        ),
        (
            "#[serde(default = \"crate::store::default\")]\nstruct S;",
            &["1 crate::store::default"],
        ),
        ("fn f() { for i in 0..sqlx::N {} }", &["1 sqlx::N"]),
        (
            "fn f() { let c = '\"'; crate::store::x(); let d = '\"'; }",
            &["1 crate::store::x"],
        ),
        (
            "fn f<'a>(x: &'a str) -> crate::store::X<'a> {}",
            &["1 crate::store::X"],
        ),
        (
            "const S: &str = r#\"\n\"#;\nuse crate::http::X;",
            &["3 crate::http::X"],
        ),
    ];
    for (source, expected) in cases {
        assert_violations(path, source, expected);
    }
}

#[test]
fn what_is_no_import_is_not_taken_for_one() {
    let path = "src/engine/job_task.rs";
    for source in [
        "// use crate::store::Store;\n/* crate::http::X /* nested */ sqlx::query */\n/// See [`crate::service`].",
        "const S: &str = \"use sqlx::PgPool; in \\\" a string\";",
        "const S: &str = r##\"crate::store \"# sqlx::query\"##;",
        "use super::fetcher::Fetcher;",
        "mod inner { use super::super::fetcher::Fetcher; }",
        "use self::inner::Thing;",
        "fn f() { x.sqlx::<u8>(); my::sqlx::query(); Vec::<u8>::sqlx(); }",
        "fn f<'a>() -> impl Sized + use<'a> {}",
        "use crate::engine::fetcher::Fetcher;",
        "pub(in crate::engine) struct X;",
    ] {
        assert_violations(path, source, &[]);
    }
}

#[test]
fn test_code_may_use_the_testing_module_and_any_crate_but_no_other_layer() {
    let source = "#[cfg(test)]\nmod tests {\n    use super::*;\n    use crate::testing::InMemoryBroker;\n    use tokio::time;\n    \
                  use crate::store::Store;\n}\nuse crate::testing::InMemoryBroker;\nuse tokio::time;";
    assert_violations(
        "src/model/job.rs",
        source,
        &[
            "6 crate::store::Store",
            "8 crate::testing::InMemoryBroker",
            "9 tokio::time",
        ],
    );
    assert_violations(
        "src/engine/tests.rs",
        "use crate::testing::InMemoryBroker;",
        &[],
    );
    let declared_elsewhere = "#[cfg(test)]\nmod tests;\nuse crate::testing::X;";
    assert_violations(
        "src/engine/mod.rs",
        declared_elsewhere,
        &["3 crate::testing::X"],
    );
}

#[test]
fn a_violation_says_where_what_and_which_rule() {
    let crates = BTreeSet::from(["sqlx".to_owned()]);
    let said = |path, source| check(path, source, &crates)[0].to_string();
    assert_eq!(
        said("src/kafka/admin.rs", "\nuse crate::engine::Fetcher;"),
        "src/kafka/admin.rs:2: `crate::engine::Fetcher`: `kafka` may import only model, engine::ports, engine::error"
    );
    assert_eq!(
        said("src/service/jobs.rs", "use sqlx::PgPool;"),
        "src/service/jobs.rs:1: `sqlx::PgPool`: the crate `sqlx` may be named only in store, sinks/postgres, dev"
    );
}
