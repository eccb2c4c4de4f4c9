//! The games of lua/games against reference data outside the repository: transition tables of
//! gymnasium, step records of gym-sokoban, levels of Boxoban, tasks and scores of Countdown. Their
//! tests without that data are in tests/lua/games_test.lua.

use super::run;
use crate::reference_data::reference_data;
use crate::script::Suite;

#[test]
#[ignore = "needs the reference data: just test-data"]
fn games_agree_with_reference_data() {
    let folder = reference_data("environments");
    let source = include_str!("../../../tests/fixtures/games_data_test.lua")
        .replace("local FOLDER = \".\"", &format!("local FOLDER = {:?}", folder.display().to_string()));
    run(async {
        let file = folder.join("games_test.lua");
        let suite = Suite::load(&file, &source, None, Box::new(|_, _| {})).await.unwrap();
        assert_eq!(suite.names().len(), 6);
        for (index, (name, _)) in suite.names().into_iter().enumerate() {
            let verdict = suite.run(index).await;
            assert!(verdict.failure.is_none(), "{name}: {:?}", verdict.failure);
        }
    });
}
