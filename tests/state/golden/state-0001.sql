BEGIN TRANSACTION;
CREATE TABLE "_sqlite_migrations" (
   "id" INTEGER PRIMARY KEY,
   "migration_set" TEXT,
   "name" TEXT,
   "applied_at" TEXT
);
INSERT INTO "_sqlite_migrations" VALUES(1,'state','0001_initial','2026-11-30 05:36:44.775197+00:00');
CREATE TABLE artifact (
        id TEXT PRIMARY KEY, task TEXT NOT NULL REFERENCES task(id),
        attempt TEXT REFERENCES attempt(id), uri TEXT NOT NULL, size INTEGER NOT NULL,
        sha256 TEXT NOT NULL, at TEXT NOT NULL);
INSERT INTO "artifact" VALUES('01KJMMA8BGPN2P0GT1HN8FAQ9J','a','01KJMMA7C8VWHQWPETC0G72MNB','s3://b/x',3,'0000000000000000000000000000000000000000000000000000000000000000','2026-03-01T12:00:06.000Z');
CREATE TABLE attempt (
        id TEXT PRIMARY KEY, task TEXT NOT NULL REFERENCES task(id),
        number INTEGER NOT NULL, generation INTEGER NOT NULL,
        host TEXT NOT NULL, epoch TEXT,
        state TEXT NOT NULL CHECK (state IN ('intended', 'published', 'started', 'running', 'exited', 'collecting', 'verified', 'check_failed', 'stopping', 'stopped', 'stop_incomplete', 'never_started', 'lost')),
        cls TEXT CHECK (cls IN ('ok', 'exit', 'signal', 'oom', 'disk_full', 'time_limit', 'stopped', 'lost_reboot', 'lost_rebuilt', 'lost_supervisor_died', 'lost_evidence_gone', 'never_started', 'check_failed')), exit_code INTEGER, signal INTEGER,
        created_at TEXT NOT NULL, started_at TEXT, ended_at TEXT,
        superseded_by TEXT REFERENCES attempt(id), definition_hash TEXT NOT NULL,
        detail TEXT NOT NULL CHECK (json_valid(detail)),
        evidence TEXT NOT NULL CHECK (json_valid(evidence)));
INSERT INTO "attempt" VALUES('01KJMMA7C8VWHQWPETC0G72MNB','a',1,1,'box','e1','verified','ok',0,NULL,'2026-03-01T12:00:05.000Z','2026-03-01T12:00:05.000Z','2026-03-01T12:00:06.000Z',NULL,'a-1','{"job":{}}','{}');
CREATE TABLE check_run (
        seq INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, task TEXT NOT NULL REFERENCES task(id),
        attempt TEXT REFERENCES attempt(id),
        purpose TEXT NOT NULL CHECK (purpose IN ('done', 'ready', 'gate')), name TEXT NOT NULL,
        spec TEXT NOT NULL CHECK (json_valid(spec)),
        verdict TEXT NOT NULL CHECK (verdict IN ('pass', 'fail', 'unknown')),
        evidence TEXT NOT NULL CHECK (json_valid(evidence)), at TEXT NOT NULL, epoch TEXT);
INSERT INTO "check_run" VALUES(1,'01KJMMA8BGVJYW6HE27RZ0235D','a','01KJMMA7C8VWHQWPETC0G72MNB','done','file x','{"file":{"path":"x"}}','pass','{"size":3}','2026-03-01T12:00:06.000Z','e1');
CREATE TABLE event (
        seq INTEGER PRIMARY KEY, at TEXT NOT NULL, actor TEXT NOT NULL, kind TEXT NOT NULL,
        subject TEXT NOT NULL, task TEXT, payload TEXT NOT NULL CHECK (json_valid(payload)),
        prev TEXT NOT NULL, hash TEXT NOT NULL);
INSERT INTO "event" VALUES(1,'2026-03-01T12:00:01.000Z','old','meta.set','workspace_id',NULL,'{"value":"01kjmma4eg7b20hsd69ejrhcnt"}','','9ffac567effbef3aca89aaf1c809879dcb15265e792241f894ad18a505b7b584');
INSERT INTO "event" VALUES(2,'2026-03-01T12:00:03.000Z','old','runbook.loaded','d1',NULL,'{"goal":"A drafter that is faster than lookup.","name":"drafter","runbook_hash":"d1","runbook_path":"runbook.yaml","title":"Train a drafter"}','9ffac567effbef3aca89aaf1c809879dcb15265e792241f894ad18a505b7b584','481c39ed8befee981116bdea10ecbac4eea3c00c51f712c34f494c6a4a3a675a');
INSERT INTO "event" VALUES(3,'2026-03-01T12:00:03.000Z','old','task.added','a','a','{"definition":{"argv":["true","a"],"version":"1"},"definition_hash":"a-1","kind":"once","needs":[],"phase":"main","position":0,"resources":[],"role":"box","step":"shell","title":"Do a"}','481c39ed8befee981116bdea10ecbac4eea3c00c51f712c34f494c6a4a3a675a','2df4822983c0bcd9a02e8629712b7efd65508aa219f4b37a8a59a0bebc47fb24');
INSERT INTO "event" VALUES(4,'2026-03-01T12:00:03.000Z','old','task.added','b','b','{"definition":{"argv":["true","b"],"version":"1"},"definition_hash":"b-1","kind":"once","needs":[["a","ok"]],"phase":"main","position":1,"resources":[],"role":"box","step":"shell","title":"Do b"}','2df4822983c0bcd9a02e8629712b7efd65508aa219f4b37a8a59a0bebc47fb24','56a6bca267da762e01119a79d65df90014c582f495040bd47e40ac74ab985d0e');
INSERT INTO "event" VALUES(5,'2026-03-01T12:00:03.000Z','old','task.added','s','s','{"definition":{"argv":["true","s"],"version":"1"},"definition_hash":"s-1","kind":"service","needs":[["a","ok"]],"phase":"main","position":2,"resources":[],"role":"box","step":"shell","title":"Do s"}','56a6bca267da762e01119a79d65df90014c582f495040bd47e40ac74ab985d0e','574a6a144cd66266e8bdfc8731174111dcfffbb8fc6eb73adb9f0912f592d60a');
INSERT INTO "event" VALUES(6,'2026-03-01T12:00:03.000Z','old','task.added','c','c','{"definition":{"argv":["true","c"],"version":"1"},"definition_hash":"c-1","kind":"once","needs":[["b","ok"],["s","any"]],"phase":"main","position":3,"resources":[],"role":"box","step":"shell","title":"Do c"}','574a6a144cd66266e8bdfc8731174111dcfffbb8fc6eb73adb9f0912f592d60a','6bfe38584e34bcc44552ae366a54ec9d3b8b2e90c3249853ef67fc72f8c2276e');
INSERT INTO "event" VALUES(7,'2026-03-01T12:00:03.000Z','old','task.added','m','m','{"definition":{"argv":["true","m"],"version":"1"},"definition_hash":"m-1","kind":"manual","needs":[["c","ok"]],"phase":"main","position":4,"resources":[],"role":null,"step":"shell","title":"Do m"}','6bfe38584e34bcc44552ae366a54ec9d3b8b2e90c3249853ef67fc72f8c2276e','1af780fa724963cf4b69b6954afd47f64d81ae45a650124d897728d6286894a0');
INSERT INTO "event" VALUES(8,'2026-03-01T12:00:03.000Z','old','task.moved','a','a','{"from":"draft","reason":"","to":"ready"}','1af780fa724963cf4b69b6954afd47f64d81ae45a650124d897728d6286894a0','f3af4de625c7ad915bfb639646aaba9ea1c7c6069c493f052680425f8e415331');
INSERT INTO "event" VALUES(9,'2026-03-01T12:00:03.000Z','old','task.moved','b','b','{"from":"draft","reason":"waits for a","to":"blocked"}','f3af4de625c7ad915bfb639646aaba9ea1c7c6069c493f052680425f8e415331','eb7d127aa0f58bb42c8a39d164b0ac9551e202888d97ab0475c59e1fe0912946');
INSERT INTO "event" VALUES(10,'2026-03-01T12:00:03.000Z','old','task.moved','s','s','{"from":"draft","reason":"waits for a","to":"blocked"}','eb7d127aa0f58bb42c8a39d164b0ac9551e202888d97ab0475c59e1fe0912946','7991d655659a65017cb023d517a8ad63c4a524a6646a55c92ab1d461d7c245cb');
INSERT INTO "event" VALUES(11,'2026-03-01T12:00:03.000Z','old','task.moved','c','c','{"from":"draft","reason":"waits for b, s","to":"blocked"}','7991d655659a65017cb023d517a8ad63c4a524a6646a55c92ab1d461d7c245cb','fddafbd7949e3e8c06f2123b1f466598e2f8dafbf9006389ddc8f69ec8770a41');
INSERT INTO "event" VALUES(12,'2026-03-01T12:00:03.000Z','old','task.moved','m','m','{"from":"draft","reason":"waits for c","to":"blocked"}','fddafbd7949e3e8c06f2123b1f466598e2f8dafbf9006389ddc8f69ec8770a41','4eebc1d308f082fe36a7967c2e733e7fdf308e8d7939d12151846cac1e6686ea');
INSERT INTO "event" VALUES(13,'2026-03-01T12:00:04.000Z','old','host.bound','box',NULL,'{"address":"old.example","epoch":null,"facts":{},"host_key":null,"kind":"ssh","port":22,"root":"~/r","seen_at":null,"unreachable_since":null,"user":"me","work":"~/w"}','4eebc1d308f082fe36a7967c2e733e7fdf308e8d7939d12151846cac1e6686ea','67a5eec78468d075a8e86c0bb8788cab4ce49bc4f08986ad62c5bf79ff85313d');
INSERT INTO "event" VALUES(14,'2026-03-01T12:00:04.000Z','old','host.seen','box',NULL,'{"epoch":"e1","facts":{"gpus":[]},"was_epoch":null}','67a5eec78468d075a8e86c0bb8788cab4ce49bc4f08986ad62c5bf79ff85313d','8bc62724323b5c689b51603c4236ced48b9fc7686e2df3f2defae655937cebb2');
INSERT INTO "event" VALUES(15,'2026-03-01T12:00:05.000Z','old','attempt.created','01KJMMA7C8VWHQWPETC0G72MNB','a','{"definition_hash":"a-1","detail":{"job":{}},"epoch":"e1","generation":1,"host":"box","number":1}','8bc62724323b5c689b51603c4236ced48b9fc7686e2df3f2defae655937cebb2','719a6b9270a7e9011d613132d7b52c7f78e385e617dd456fd7924af10d0aa26a');
INSERT INTO "event" VALUES(16,'2026-03-01T12:00:05.000Z','old','task.moved','a','a','{"began_hash":"a-1","from":"ready","reason":"","to":"active"}','719a6b9270a7e9011d613132d7b52c7f78e385e617dd456fd7924af10d0aa26a','c95a95ed38ec02bdeca15d2e4d1d50e44aba10addf328bef4c8612516bd5e663');
INSERT INTO "event" VALUES(17,'2026-03-01T12:00:05.000Z','old','attempt.moved','01KJMMA7C8VWHQWPETC0G72MNB','a','{"from":"intended","started_at":"2026-03-01T12:00:05.000Z","state":"running"}','c95a95ed38ec02bdeca15d2e4d1d50e44aba10addf328bef4c8612516bd5e663','fc22c5fb14ceeb410ba0483f649ff6f579fa09de9072d12da384770080a2851a');
INSERT INTO "event" VALUES(18,'2026-03-01T12:00:06.000Z','old','attempt.moved','01KJMMA7C8VWHQWPETC0G72MNB','a','{"ended_at":"2026-03-01T12:00:06.000Z","exit_code":0,"from":"running","state":"exited"}','fc22c5fb14ceeb410ba0483f649ff6f579fa09de9072d12da384770080a2851a','c4c581bfc870ccaa4fcfe6eb2538f9d5a99bd40ab0f20180b35287908766487e');
INSERT INTO "event" VALUES(19,'2026-03-01T12:00:06.000Z','old','attempt.moved','01KJMMA7C8VWHQWPETC0G72MNB','a','{"from":"exited","state":"collecting"}','c4c581bfc870ccaa4fcfe6eb2538f9d5a99bd40ab0f20180b35287908766487e','fb20d96c6288964aea9c50490eb88d88b733efd8a486a8201ac3f16f1db332c9');
INSERT INTO "event" VALUES(20,'2026-03-01T12:00:06.000Z','old','task.moved','a','a','{"from":"active","reason":"","to":"verifying"}','fb20d96c6288964aea9c50490eb88d88b733efd8a486a8201ac3f16f1db332c9','a83008f5724ccc1f21370cd4ba0c0319895b61c6b9857e07fb222bf9c8bd68e1');
INSERT INTO "event" VALUES(21,'2026-03-01T12:00:06.000Z','old','check.recorded','01KJMMA7C8VWHQWPETC0G72MNB','a','{"check":"01KJMMA8BGVJYW6HE27RZ0235D","name":"file x","purpose":"done","verdict":"pass"}','a83008f5724ccc1f21370cd4ba0c0319895b61c6b9857e07fb222bf9c8bd68e1','615cbf377fb0b619b2643d8828334d14d701bbbadaa4b3f9b03802416a5a099a');
INSERT INTO "event" VALUES(22,'2026-03-01T12:00:06.000Z','old','artifact.recorded','s3://b/x','a','{"artifact":"01KJMMA8BGPN2P0GT1HN8FAQ9J","sha256":"0000000000000000000000000000000000000000000000000000000000000000","size":3,"uri":"s3://b/x"}','615cbf377fb0b619b2643d8828334d14d701bbbadaa4b3f9b03802416a5a099a','2e8e9785cbb66de9c664a3ede38beb43e4af81dfc3e8bebe95970ca577d3e9bd');
INSERT INTO "event" VALUES(23,'2026-03-01T12:00:06.000Z','old','attempt.moved','01KJMMA7C8VWHQWPETC0G72MNB','a','{"cls":"ok","from":"collecting","state":"verified"}','2e8e9785cbb66de9c664a3ede38beb43e4af81dfc3e8bebe95970ca577d3e9bd','48b8f05356b946db55b7c5e954faefabb1bb1b053314ca0bbaf5900dfb77528a');
INSERT INTO "event" VALUES(24,'2026-03-01T12:00:06.000Z','old','task.moved','a','a','{"from":"verifying","reason":"","to":"done"}','48b8f05356b946db55b7c5e954faefabb1bb1b053314ca0bbaf5900dfb77528a','fb9d3900aeead85b3c56f02e078a9cf3ffaf64eef97971bbd35e13f4e4fbef45');
INSERT INTO "event" VALUES(25,'2026-03-01T12:00:06.000Z','old','task.moved','b','b','{"from":"blocked","reason":"","to":"ready"}','fb9d3900aeead85b3c56f02e078a9cf3ffaf64eef97971bbd35e13f4e4fbef45','fc0b519841a216709ebb41a1d2f29fe26d6696b4144216723eb6455eaecb6b79');
INSERT INTO "event" VALUES(26,'2026-03-01T12:00:06.000Z','old','task.moved','s','s','{"from":"blocked","reason":"","to":"ready"}','fc0b519841a216709ebb41a1d2f29fe26d6696b4144216723eb6455eaecb6b79','15a944bb602c7ba2c2ee22df95a7a1228ed8ffcfea50b591d24e5304708934eb');
INSERT INTO "event" VALUES(27,'2026-03-01T12:00:07.000Z','old','decision.made','a','a','{"decision":true,"note":"01KJMMA9AR0JJ8Z9GZBTYDJ9EK","text":"kept"}','15a944bb602c7ba2c2ee22df95a7a1228ed8ffcfea50b591d24e5304708934eb','02ea51736b3926811184820d510c48914ce2269dea74886f32f23990590ac68d');
INSERT INTO "event" VALUES(28,'2026-03-01T12:00:07.000Z','old','meta.set','approved:m:m-1',NULL,'{"value":"approved by ann: seen"}','02ea51736b3926811184820d510c48914ce2269dea74886f32f23990590ac68d','d06a569b7c9c00f2d372a608199ce00daeda5b625f01c0ef2e9af64e7c69356c');
INSERT INTO "event" VALUES(29,'2026-03-01T12:00:08.000Z','old','lease.acquired','engine',NULL,'{"holder":"old (pid 1)","token":1}','d06a569b7c9c00f2d372a608199ce00daeda5b625f01c0ef2e9af64e7c69356c','42c45986e4294337b5b8e9b8bfea25d5704e888325a98da63c23f957bdba4b7b');
INSERT INTO "event" VALUES(30,'2026-03-01T12:00:09.000Z','old','lease.released','engine',NULL,'{"holder":"old (pid 1)","token":1}','42c45986e4294337b5b8e9b8bfea25d5704e888325a98da63c23f957bdba4b7b','2df8224ffe3ac945eb30db93a9ece63b17855e216f13da4043d5d01fee2fc962');
CREATE TABLE host (
        role TEXT PRIMARY KEY, kind TEXT NOT NULL CHECK (kind IN ('local', 'ssh')),
        address TEXT NOT NULL, user TEXT NOT NULL, port INTEGER NOT NULL, root TEXT NOT NULL,
        work TEXT NOT NULL, host_key TEXT, epoch TEXT,
        facts TEXT NOT NULL CHECK (json_valid(facts)), seen_at TEXT, unreachable_since TEXT);
INSERT INTO "host" VALUES('box','ssh','old.example','me',22,'~/r','~/w',NULL,'e1','{"gpus":[]}','2026-03-01T12:00:04.000Z',NULL);
CREATE TABLE lease (
        resource TEXT PRIMARY KEY, holder TEXT NOT NULL, token INTEGER NOT NULL,
        acquired_at TEXT NOT NULL, released_at TEXT);
INSERT INTO "lease" VALUES('engine','old (pid 1)',1,'2026-03-01T12:00:08.000Z','2026-03-01T12:00:09.000Z');
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
INSERT INTO "meta" VALUES('workspace_id','01kjmma4eg7b20hsd69ejrhcnt');
INSERT INTO "meta" VALUES('runbook_hash','d1');
INSERT INTO "meta" VALUES('runbook_path','runbook.yaml');
INSERT INTO "meta" VALUES('name','drafter');
INSERT INTO "meta" VALUES('title','Train a drafter');
INSERT INTO "meta" VALUES('goal','A drafter that is faster than lookup.');
INSERT INTO "meta" VALUES('approved:m:m-1','approved by ann: seen');
CREATE TABLE note (
        id TEXT PRIMARY KEY, at TEXT NOT NULL, actor TEXT NOT NULL, task TEXT REFERENCES task(id),
        text TEXT NOT NULL, decision INTEGER NOT NULL CHECK (decision IN (0, 1)));
INSERT INTO "note" VALUES('01KJMMA9AR0JJ8Z9GZBTYDJ9EK','2026-03-01T12:00:07.000Z','old','a','kept',1);
CREATE TABLE runbook_rev (
        digest TEXT PRIMARY KEY, path TEXT NOT NULL, text TEXT NOT NULL,
        loaded_at TEXT NOT NULL, actor TEXT NOT NULL);
INSERT INTO "runbook_rev" VALUES('d1','runbook.yaml','# d1','2026-03-01T12:00:03.000Z','old');
CREATE TABLE task (
        id TEXT PRIMARY KEY, position INTEGER NOT NULL, title TEXT NOT NULL, phase TEXT NOT NULL,
        step TEXT NOT NULL, kind TEXT NOT NULL CHECK (kind IN ('once', 'service', 'manual')), role TEXT,
        needs TEXT NOT NULL CHECK (json_valid(needs)),
        definition TEXT NOT NULL CHECK (json_valid(definition)),
        definition_hash TEXT NOT NULL,
        resources TEXT NOT NULL CHECK (json_valid(resources)),
        state TEXT NOT NULL CHECK (state IN ('draft', 'blocked', 'ready', 'gated', 'active', 'verifying', 'done', 'failed', 'skipped', 'stale', 'attention', 'starting', 'serving', 'unhealthy', 'draining')),
        reason TEXT NOT NULL, out TEXT NOT NULL CHECK (json_valid(out)),
        since TEXT NOT NULL, removed INTEGER NOT NULL CHECK (removed IN (0, 1)),
        began_hash TEXT);
INSERT INTO "task" VALUES('a',0,'Do a','main','shell','once','box','[]','{"argv":["true","a"],"version":"1"}','a-1','[]','done','','{}','2026-03-01T12:00:06.000Z',0,'a-1');
INSERT INTO "task" VALUES('b',1,'Do b','main','shell','once','box','[["a","ok"]]','{"argv":["true","b"],"version":"1"}','b-1','[]','ready','','{}','2026-03-01T12:00:06.000Z',0,NULL);
INSERT INTO "task" VALUES('s',2,'Do s','main','shell','service','box','[["a","ok"]]','{"argv":["true","s"],"version":"1"}','s-1','[]','ready','','{}','2026-03-01T12:00:06.000Z',0,NULL);
INSERT INTO "task" VALUES('c',3,'Do c','main','shell','once','box','[["b","ok"],["s","any"]]','{"argv":["true","c"],"version":"1"}','c-1','[]','blocked','waits for b, s','{}','2026-03-01T12:00:03.000Z',0,NULL);
INSERT INTO "task" VALUES('m',4,'Do m','main','shell','manual',NULL,'[["c","ok"]]','{"argv":["true","m"],"version":"1"}','m-1','[]','blocked','waits for c','{}','2026-03-01T12:00:03.000Z',0,NULL);
CREATE UNIQUE INDEX "idx__sqlite_migrations_migration_set_name"
    ON "_sqlite_migrations" ("migration_set", "name");
CREATE TRIGGER event_is_final BEFORE UPDATE ON event
        BEGIN SELECT RAISE(ABORT, 'events are never changed'); END;
CREATE TRIGGER event_is_kept BEFORE DELETE ON event
        BEGIN SELECT RAISE(ABORT, 'events are never deleted'); END;
CREATE TRIGGER event_is_next BEFORE INSERT ON event
        WHEN NEW.seq <> (SELECT coalesce(max(seq), 0) + 1 FROM event)
          OR NEW.prev <> coalesce((SELECT hash FROM event ORDER BY seq DESC LIMIT 1), '')
        BEGIN SELECT RAISE(ABORT, 'an event must follow the last one'); END;
CREATE TRIGGER lease_token_grows BEFORE UPDATE ON lease WHEN NEW.token < OLD.token
        BEGIN SELECT RAISE(ABORT, 'a fence token never shrinks'); END;
CREATE INDEX "idx_event_task_seq"
    ON "event" ("task", "seq");
CREATE UNIQUE INDEX "idx_attempt_task_number"
    ON "attempt" ("task", "number");
CREATE INDEX "idx_check_run_task_purpose_name"
    ON "check_run" ("task", "purpose", "name");
CREATE INDEX "idx_note_task"
    ON "note" ("task");
CREATE INDEX "idx_artifact_task"
    ON "artifact" ("task");
COMMIT;
