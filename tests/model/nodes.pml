/* nodes.pml: transaction managers that keep their decisions in a database which they share, for spin.

   The guide tells the protocol in sentences (man/guide/protocol.md); the numbers of its steps stand here at what does
   them. Each node is one process with one transaction: rows in the database that decides, and a branch in each of QUEUES
   queues. SWEEPERS others look at what it leaves, LOOKS times each.

   There is no clock. A node may be taken for silent at any moment, and wake up at any later one; what is sent to a queue
   arrives late, in any order, or never; a queue may be out of reach whenever it is asked; a node may be killed at any step.

   What must hold:
     all or none    a queue and the database never end a transaction differently          (agree, at each end)
     told           a node tells its caller what the database did                         (said)
     no doubt       when all processes are over and all can be reached, one more sweep leaves no branch prepared  (Last)

   What else may happen, each by -D:
     QUEUE_CRASH    the queues lose what they have not hardened, and begin a new life
     DATABASE_CRASH the database loses what was not durable; there is only such a thing in a mutant
     CARRIED        the change of the queue is in the decision's row, and no branch is prepared; its space is open in the
                    node's process. With QUEUE_CRASH another process opens it anew, and any that has the database tells it,
                    once, of all that is carried for it: a number without a row is void from then on
     COPY           a copy of the database, made before the transaction, has a sweeper of its own over the same queue
     TWIN           a second service in the same database has another queue under the same name
     YEARS          tombstones go
     NO_LOCK, NO_FORCE, EARLY   one of the two guards is left out; both together must be found

   Mutants, each a clause of the protocol that is broken, are -DM_...; test_model.py has the list, and what each needs.

   Not in it: clocks and the arithmetic of signs (a flag says that the number in a transaction's name is committed),
   heuristics, a failover that loses commits (nothing can hold then), replicas of a queue. A second database, which
   prepares, is a queue without QUEUE_CRASH.
*/
#ifndef NODES
#define NODES 1
#endif
#ifndef SWEEPERS
#define SWEEPERS 2
#endif
#ifndef LOOKS
#define LOOKS 2
#endif
#ifndef QUEUES
#define QUEUES 1
#endif

#define BRANCHES (NODES * QUEUES)
#define OF(b) ((b) / QUEUES)          /* the transaction of a branch */
#if QUEUES == 1
#define EACH(what, t) what(t)
#define ALL(what, t) (what(t))
#else
#define EACH(what, t) what(2 * (t)); what(2 * (t) + 1)
#define ALL(what, t) (what(2 * (t)) && what(2 * (t) + 1))
#endif

/* Values are small numbers, so that a state is a few bytes. */
#define NOTHING 0                     /* of a branch: not there; of a decision: no row; of rows: not ended yet */
#define PREPARED 1
#define COMMITTED 2
#define ROLLED_BACK 3

#define IDLE 0                        /* of the session in the database that decides */
#define OPEN 1                        /* it has inserted the decision: it holds that key, and shares its node's row */
#define SENT 2                        /* its COMMIT is on its way */
#define OVER 3

/* The queues */
byte at[BRANCHES];                    /* as they answer, from memory */
byte disk[BRANCHES];                  /* as they are after a crash */
bool preparing[BRANCHES], committing[BRANCHES], undoing[BRANCHES];     /* requests on their way */
bit life;                             /* another one after each crash */
#ifdef CARRIED
bit row_of_life;                      /* in the database: who opened the space last, as far as that is told */
bool told[BRANCHES];                  /* who opened it has been told all that there is */
#endif

/* The database */
byte rows[NODES];                     /* the application's */
byte word[NODES];                     /* the decision: what its row says */
bool owed[BRANCHES];                  /* whether that row still names this branch's queue */
byte session[NODES];
bool node[NODES], tombstone[NODES];
bool known[NODES];                    /* the number of a sign that the transaction's name has is committed */
bool met[BRANCHES];                   /* the sign names the branch's queue */

/* The processes */
bool killed[NODES];
bool over[NODES];
byte working = NODES;                 /* nodes that are not over */
byte others;                          /* whoever else is not over */

#define HELD(t) (session[t] == OPEN || session[t] == SENT)
#ifdef NO_LOCK
#define LOCKED(t) false
#else
#define LOCKED(t) HELD(t)
#endif

#define SEND_PREPARE(b) preparing[b] = true
#define SEND_COMMIT(b) committing[b] = true
#define SEND_ROLLBACK(b) undoing[b] = true
#define HARDEN(b) disk[b] = at[b]
#define IS_THERE(b) (at[b] != NOTHING)
#define IS_COMMITTED(b) (at[b] == COMMITTED)
#define IS_OVER(b) (at[b] == COMMITTED || at[b] == ROLLED_BACK)
#define IS_QUIET(b) (!preparing[b] && !committing[b] && !undoing[b])
#define MEET(b) met[b] = true
#define OWE(b) owed[b] = true
#define IS_STRUCK(b) (!owed[b])
#define SET_COMMITTED(b) at[b] = COMMITTED

inline agree(b) {
  assert(!(at[b] == COMMITTED && rows[OF(b)] != COMMITTED));
  assert(!(at[b] == ROLLED_BACK && rows[OF(b)] == COMMITTED))
}

/* A node tells its caller how the transaction has ended. Where it is swept though it may decide that may be wrong: a late
   decision is carried out, and struck, while another one looks for it. */
#if defined(NO_LOCK) || defined(EARLY)
#define said(outcome) skip
#else
#define said(outcome) assert((rows[t] == COMMITTED) == (outcome == COMMITTED))
#endif

/* Step 8: a row that says rollback goes in, unless there is one; who holds the key is waited for. */
#define FORCE(t) atomic { !HELD(t) -> if :: word[t] == NOTHING -> word[t] = ROLLED_BACK :: else fi }

#ifdef M_WORD                         /* whatever the row says */
#define SAYS_COMMIT(t) (word[t] != NOTHING)
#else
#define SAYS_COMMIT(t) (word[t] == COMMITTED)
#endif
#define CARRY_OUT(b) atomic { if :: SAYS_COMMIT(OF(b)) -> committing[b] = true :: else -> undoing[b] = true fi }

/* Step 12, its end: this queue is struck from what the row was read to owe; who strikes the last one deletes the row,
   unless the node may decide: as long as that lives it may have no answer yet, and look for the row. */
#ifdef M_LIVING
#define MAY_LOOK(t) false
#else
#define MAY_LOOK(t) node[t]
#endif
inline strike(b) {
  atomic {
    if
    :: word[OF(b)] == COMMITTED ->
       owed[b] = false;
#ifdef M_LAST                         /* the row goes with the first one */
       word[OF(b)] = NOTHING
#else
       if :: ALL(IS_STRUCK, OF(b)) && !MAY_LOOK(OF(b)) -> word[OF(b)] = NOTHING :: else fi
#endif
    :: else
    fi
  }
}

active proctype Queue() {
  byte b;
end:
  do
  :: atomic {
       select(b : 0 .. BRANCHES - 1);
       if
       :: preparing[b] -> preparing[b] = false;
          if :: at[b] == NOTHING -> at[b] = PREPARED; disk[b] = PREPARED :: skip /* lost */ fi
       :: committing[b] -> committing[b] = false;
          if :: at[b] == PREPARED -> at[b] = COMMITTED; agree(b) /* hardened later */ :: skip fi
       :: undoing[b] -> undoing[b] = false;
          if :: at[b] == PREPARED -> at[b] = ROLLED_BACK; agree(b) /* hardened later */ :: skip fi
       :: else
       fi;
       b = 0
     }
  od
}

/* What the database does with the sessions that decide. */
active proctype Database() {
  byte t;
end:
  do
  :: atomic {
       select(t : 0 .. NODES - 1);
       if
       :: session[t] == SENT && word[t] == NOTHING ->
          session[t] = OVER; rows[t] = COMMITTED; word[t] = COMMITTED; EACH(OWE, t); EACH(agree, t)
       :: HELD(t) -> session[t] = OVER; rows[t] = ROLLED_BACK       /* its limit, its client's death, a cut */
       :: else
       fi;
       t = 0
     }
  od
}

active [NODES] proctype Kill() {
  byte t = _pid - 2;
  if :: killed[t] = true :: skip fi
}

active [NODES] proctype Node() {
  byte t = _pid - 2 - NODES;
  bool answered;
  bit lived;
  !killed[t];
  {
#ifndef M_UNREGISTERED
    node[t] = true;                                             /* 1 */
#endif
#ifndef M_UNSIGNED
    known[t] = true;                                            /* 2, and 3: the name of the transaction has that number */
#endif
#ifndef M_UNMET
    d_step { EACH(MEET, t) };                                   /* 2: and it names the queues */
#endif
#ifdef CARRIED
    if :: life == 0 :: life == 1 -> goto undo fi;               /* the branch has its number, of this life */
#else
    EACH(SEND_PREPARE, t);                                      /* 4 */
#ifdef M_UNREGISTERED
    node[t] = true;
#endif
#ifdef M_UNSIGNED
    known[t] = true;
#endif
#ifdef M_UNMET
    d_step { EACH(MEET, t) };
#endif
    if
    :: ALL(IS_THERE, t) -> answered = true
    :: goto undo                                                /* no answer in time */
    fi;
#endif
#ifdef NO_LOCK
    if :: node[t] -> skip :: !node[t] -> goto undo fi;          /* 5: the row is looked at ... */
    if :: atomic { word[t] == NOTHING -> session[t] = OPEN } :: word[t] != NOTHING -> goto undo fi;
#else
    if                                                          /* 5: the row is locked, and the decision inserted */
#ifdef CARRIED
#ifdef M_LIVES                                                  /* whoever has the space now */
#define IS_OWNER true
#else
#define IS_OWNER (row_of_life == 0)
#endif
    :: atomic { node[t] && word[t] == NOTHING && IS_OWNER -> session[t] = OPEN }      /* and shares the life's row */
    :: !node[t] || word[t] != NOTHING || !IS_OWNER -> goto undo
#else
    :: atomic { node[t] && word[t] == NOTHING -> session[t] = OPEN }
    :: !node[t] || word[t] != NOTHING -> goto undo
#endif
    fi;
#endif
    atomic { if :: session[t] == OPEN -> session[t] = SENT :: else fi };
    if
    :: session[t] == OVER && rows[t] == COMMITTED -> skip       /* answered */
#ifdef M_FORCED_LATE
    :: FORCE(t);
#else
    :: atomic { !HELD(t) -> if :: node[t] && word[t] == NOTHING -> word[t] = ROLLED_BACK :: else fi };
#endif                                                          /* 6: not answered; who is ended forces nothing ... */
       if
       :: word[t] == COMMITTED
#ifdef M_MISSING
       :: word[t] != COMMITTED -> said(ROLLED_BACK); goto undo
#else
       :: word[t] == ROLLED_BACK -> said(ROLLED_BACK); goto undo
       :: word[t] == NOTHING -> goto close                      /* ... and learns nothing from a row that is not there */
#endif
       fi
    fi;
    said(COMMITTED);
#ifdef CARRIED
    atomic { if :: life == 0 -> EACH(SET_COMMITTED, t); EACH(agree, t) :: else fi };    /* in this process's memory */
#else
    EACH(SEND_COMMIT, t);                                       /* 7 */
#endif
    if
    :: atomic { ALL(IS_COMMITTED, t) -> lived = life };         /* all have answered */
#ifndef M_SOFT
       d_step { EACH(HARDEN, t) };
#endif
#ifdef M_LIFE
       EACH(strike, t);
#else
       if :: life == lived -> EACH(strike, t) :: else fi;
#endif
       atomic { if :: word[t] == COMMITTED && ALL(IS_STRUCK, t) -> word[t] = NOTHING :: else fi }
    :: skip
    fi;
    goto close;
undo:
    atomic { if :: session[t] == IDLE -> session[t] = OVER; rows[t] = ROLLED_BACK :: else fi };
    EACH(SEND_ROLLBACK, t);
close:                                                          /* 14 */
    if
#ifdef M_CLOSE
    :: atomic { node[t] && !HELD(t) && word[t] != COMMITTED -> node[t] = false; known[t] = false; word[t] = NOTHING }
#else
    :: atomic { answered && ALL(IS_OVER, t) && !HELD(t) && word[t] != COMMITTED -> lived = life };
       d_step { EACH(HARDEN, t) };
#ifdef M_CLOSE_LIFE
       atomic { if :: node[t] -> node[t] = false; known[t] = false; word[t] = NOTHING :: else fi }
#else
       atomic { if :: node[t] && life == lived -> node[t] = false; known[t] = false; word[t] = NOTHING :: else fi }
#endif
#endif
    :: skip                                                     /* killed, or silent, or ended by itself: a tombstone */
    fi
  } unless { killed[t] };
  atomic { over[t] = true; working--; answered = false; lived = 0 }
}

/* Step 10: never waits; the row is locked as long as a decision is on its way. */
inline end_node(t) {
  atomic {
    if
    :: node[t] && !LOCKED(t) ->
       node[t] = false;
#ifdef M_NO_TOMBSTONE
       if :: word[t] != COMMITTED -> word[t] = NOTHING :: else fi
#else
       tombstone[t] = true
#endif
    :: else
    fi
  }
}

/* Steps 11 and 12, at one branch's queue: each line is a question of its own. */
inline sweep(b, t) {
  decided = (word[t] == COMMITTED);
  lived = life;
#ifdef M_HARDENED_BEFORE
  HARDEN(b);
#endif
  if
  :: at[b] == PREPARED ->                                       /* it is listed */
     if
     :: word[t] == COMMITTED -> committing[b] = true            /* carried out by anybody, though its node lives */
     :: node[t]                                                 /* lives */
     :: !node[t] && !(tombstone[t] && known[t])                 /* not known here: left, and said */
#ifdef M_STALE
     :: !node[t] && tombstone[t] && known[t] ->
#else
     :: word[t] != COMMITTED && !node[t] && tombstone[t] && known[t] ->
#endif
#ifdef NO_FORCE
#ifdef M_STALE                                                  /* a lagging copy of the database has no decision yet */
        if :: CARRY_OUT(b) :: undoing[b] = true fi
#else
        CARRY_OUT(b)
#endif
#elif defined(M_LISTED_ONCE)
        FORCE(t); CARRY_OUT(b)
#else
        if
        :: at[b] == PREPARED -> FORCE(t); CARRY_OUT(b)          /* 11: it is listed once more */
        :: at[b] != PREPARED                                    /* finished meanwhile, and its row may be gone */
        fi
#endif
     fi
#ifdef M_UNASKED
  :: decided -> strike(b)
#elif defined(CARRIED) && !defined(M_CARRIED)
  :: at[b] == COMMITTED && decided ->                           /* its space says that it has applied this number */
#else
  :: at[b] != PREPARED && decided ->                            /* its whole list is told, and is without it */
#endif
#ifndef M_UNASKED
#if !defined(M_SOFT) && !defined(M_HARDENED_BEFORE)
     HARDEN(b);
#endif
#ifdef M_LIFE
     strike(b)
#else
     if :: life == lived -> strike(b) :: else fi
#endif
#endif
  :: skip                                                       /* out of reach */
  fi
}

#ifdef CARRIED
/* Whoever has both tells the space that was opened anew. Beginning its life waits for who shares the former one's row. */
inline tell(b, t) {
#ifdef M_READ                                                   /* before, and not behind it */
  decided = (word[t] == COMMITTED);
#endif
  if
  :: life != row_of_life ->
#ifdef M_UNWAITED
     row_of_life = life
#else
     atomic { !HELD(t) -> row_of_life = life }
#endif
  :: life == row_of_life
  fi;
#ifndef M_READ
  decided = (word[t] == COMMITTED);
#endif
  atomic {
    if
    :: !told[b] ->
       if :: decided && at[b] == NOTHING -> at[b] = COMMITTED; agree(b) :: else fi;
       HARDEN(b); told[b] = true
    :: else
    fi
  }
}
#endif

active [SWEEPERS] proctype Sweeper() {
  byte b, look;
  bool decided;
  bit lived;
  atomic { others++ };
  for (look : 1 .. LOOKS) {
    select(b : 0 .. BRANCHES - 1);
#ifdef EARLY
    if
    :: at[b] == PREPARED ->
#ifdef NO_FORCE
       if :: word[OF(b)] == NOTHING -> undoing[b] = true :: else fi
#else
       FORCE(OF(b)); CARRY_OUT(b)
#endif
    :: skip
    fi;
#endif
    if :: end_node(OF(b)) :: skip fi;                           /* 9: silent, or not */
#ifdef CARRIED
    if :: life == 1 -> tell(b, OF(b)) :: skip fi;
#endif
    sweep(b, OF(b))
  };
  atomic { others--; b = 0; look = 0; decided = false; lived = 0 }
}

#ifdef QUEUE_CRASH
active proctype QueueCrash() {
  byte b;
  atomic { others++ };
  atomic { for (b : 0 .. BRANCHES - 1) { at[b] = disk[b] }; life = 1 - life; others--; b = 0 }
}
#endif

#ifdef DATABASE_CRASH
active proctype DatabaseCrash() {
  byte t;
  atomic { others++ };
  atomic {
    for (t : 0 .. NODES - 1) {
      if :: HELD(t) -> session[t] = OVER; rows[t] = ROLLED_BACK :: else fi;
#ifdef M_SOFT_NODE                                              /* 1 is not durable */
      node[t] = false; known[t] = false;
#endif
#ifdef M_SOFT_END                                               /* 10 is not durable */
      if :: tombstone[t] -> node[t] = true; tombstone[t] = false :: else fi;
#endif
#ifdef M_SOFT_DECISION                                          /* 5 is not durable */
      if :: word[t] == COMMITTED -> word[t] = NOTHING; rows[t] = ROLLED_BACK; EACH(agree, t) :: else fi;
#endif
    };
    others--; t = 0
  }
}
#endif

#ifdef TWIN
active proctype Twin() {
  atomic { others++ };
  if :: end_node(0) :: skip fi;
#ifdef M_NAME                                                   /* its own queue, of that name, has no such branch */
  if :: strike(0) :: skip fi;
#endif
  atomic { others-- }
}
#endif

#ifdef YEARS
/* Step 13. Nothing is on its way for 30 days. */
active proctype Years() {
  bit lived;
  atomic { others++ };
  if
  :: atomic { over[0] && tombstone[0] && word[0] != COMMITTED && !HELD(0) && ALL(IS_QUIET, 0) -> lived = life };
#ifdef M_AGE
     atomic { tombstone[0] = false; known[0] = false; word[0] = NOTHING }
#else
     if
     :: !met[0]                                                 /* only who was met is asked */
     :: met[0] && at[0] != PREPARED
     fi;
     HARDEN(0);
#ifdef M_YEARS_LIFE
     atomic { tombstone[0] = false; known[0] = false; word[0] = NOTHING }
#else
     atomic { if :: life == lived -> tombstone[0] = false; known[0] = false; word[0] = NOTHING :: else fi }
#endif
#endif
  :: skip
  fi;
  atomic { others--; lived = 0 }
}
#endif

#ifdef COPY
active proctype Copy() {
  bool has_node, has_sign;
  byte has_word;
  atomic { others++ };
  if
#ifdef M_WINDOW                                                 /* made between the sign and the decision */
  :: atomic { has_node = node[0]; has_sign = known[0]; has_word = word[0] }
#else
  :: atomic { !known[0] -> has_node = node[0]; has_word = word[0] }
#endif
  :: goto none
  fi;
  if                                                            /* there its node is silent, and ended */
#ifdef M_SIGN                                                   /* what has that node is swept */
  :: at[0] == PREPARED && has_node ->
#else
  :: at[0] == PREPARED && has_node && has_sign ->
#endif
     if :: has_word == COMMITTED -> committing[0] = true :: else -> undoing[0] = true fi
  :: skip
  fi;
none:
  atomic { others--; has_node = false; has_sign = false; has_word = 0 }
}
#endif

/* In the end all can be reached, what was on its way has come, and there is one more sweep. */
active proctype Last() {
  byte b, t;
  working == 0 && others == 0;
  for (b : 0 .. BRANCHES - 1) {
    t = OF(b);
    !HELD(t) && IS_QUIET(b);
    atomic {
      end_node(t);
#ifdef CARRIED
      if :: word[t] == COMMITTED && at[b] == NOTHING && !told[b] -> at[b] = COMMITTED :: else fi;   /* who has the space now */
#endif
      if
      :: at[b] == PREPARED && word[t] == COMMITTED -> at[b] = COMMITTED
      :: at[b] == PREPARED && word[t] != COMMITTED && tombstone[t] && known[t] ->
         FORCE(t);
         if :: SAYS_COMMIT(t) -> at[b] = COMMITTED :: else -> at[b] = ROLLED_BACK fi
      :: else
      fi;
      assert(at[b] != PREPARED);                                /* nobody is in doubt for ever */
      assert((at[b] == COMMITTED) == (rows[t] == COMMITTED))    /* all or none */
    }
  }
}
