//! Names of the server's own operators, functions and types, for messages: a stored tree has only
//! OIDs, but a person wrote names.
//!
//! OIDs below 10,000 are the same on every server, and a filter cannot contain users' objects. The
//! lists are those of version 18, which has everything that earlier versions have. Functions that
//! implement casts, operators, indexes and aggregates are left out, because filters do not call
//! them by name.

/// An operator's name.
pub(crate) fn operator(oid: u32) -> Option<&'static str> {
    find(OPERATORS, oid)
}

/// A function's name.
pub(crate) fn function(oid: u32) -> Option<&'static str> {
    find(FUNCTIONS, oid)
}

/// A type's name in SQL.
pub(crate) fn type_name(oid: u32) -> Option<&'static str> {
    find(TYPES, oid)
}

/// The name in front of `oid` in one of the lists: names with their OIDs, separated by semicolons.
fn find(list: &'static str, oid: u32) -> Option<&'static str> {
    list.split("; ").find_map(|entry| {
        let (name, oids) = entry.split_once(" = ")?;
        oids.split(' ').any(|own| own.parse() == Ok(oid)).then_some(name)
    })
}

/// `pg_operator`.
const OPERATORS: &str = "\
    !! = 3682; !~ = 640 642 1056; !~* = 1227 1229 1235; !~~ = 1208 1210 1212 2017; \
    !~~* = 1626 1628 1630; # = 797 803 1521 1536 1617 1793 1876 1882 1888; \
    ## = 1557 1558 1559 1567 1577 1578; #- = 3287; #> = 3213 3966; #>> = 3206 3967; \
    % = 439 529 530 1762; & = 1791 1874 1880 1886 2635 3148 3369; \
    && = 492 500 1513 2750 2866 2867 2868 3552 3680 3888; &< = 486 494 1507 2875 2876 2877 3895; \
    &<| = 2571 2575 2589; &> = 487 495 1508 3585 3896 4035 4142; \
    * = 514 526 544 545 589 594 686 690 694 733 738 806 820 824 843 845 908 912 914 916 917 918 1119 1129 1518 1583 1584 1760 3346 3349 3900 4394; \
    *< = 3190; *<= = 3192; *<> = 3189; *= = 3188; *> = 3191; *>= = 3193; \
    + = 550 551 552 553 586 591 684 688 692 731 735 736 804 818 822 906 966 1076 1100 1116 1126 1327 1337 1360 1361 1363 1366 1516 1758 1800 1802 1849 1916 1917 1918 1919 1920 1921 2066 2551 2552 2553 2554 2555 2637 2638 3898 4392 5025 5026; \
    - = 484 554 555 556 557 558 559 584 585 587 592 685 689 693 732 737 805 819 823 907 967 1077 1099 1101 1117 1127 1328 1329 1336 1338 1399 1517 1751 1759 1801 1803 2067 2068 2639 2640 3228 3285 3286 3398 3899 4393 5027; \
    -> = 3211 3212 3962 3964; ->> = 3477 3481 3963 3965; -|- = 3897 4179 4180 4198; \
    / = 527 528 546 547 588 593 687 691 695 734 739 807 821 825 844 909 913 915 1118 1128 1519 1585 1761 3347 3825; \
    < = 37 58 95 97 255 261 412 418 504 534 535 609 622 631 645 660 664 672 793 902 1058 1072 1095 1110 1122 1132 1203 1222 1322 1332 1502 1552 1587 1754 1786 1806 1864 1870 1957 2062 2345 2358 2371 2384 2534 2540 2799 2862 2974 2990 3224 3242 3364 3518 3627 3674 3884 5073; \
    <-> = 517 606 613 614 615 616 617 618 706 707 708 709 712 760 761 762 763 784 1383 1520 1522 1523 3276 3289 3291 5005; \
    << = 485 493 507 931 1506 1795 1878 1884 1890 3893 4395 4396 4397; <<= = 932; \
    <<| = 1515 2570 2574 4162; \
    <= = 80 256 262 414 420 505 522 523 540 541 611 624 632 647 661 665 673 795 904 1059 1074 1096 1111 1124 1134 1204 1223 1323 1333 1504 1553 1588 1694 1755 1788 1808 1866 1872 1958 2063 2346 2359 2372 2385 2535 2541 2801 2863 2976 2992 3226 3244 3365 3520 3628 3675 3885 5075; \
    <> = 36 85 259 265 402 411 417 518 519 531 538 539 608 621 630 643 644 671 713 901 1057 1071 1094 1109 1121 1131 1202 1221 1321 1331 1501 1551 1586 1753 1785 1805 1863 1869 1956 2061 2350 2363 2376 2389 2539 2545 2861 2973 2989 3223 3241 3315 3316 3363 3517 3630 3677 3883 5072; \
    <@ = 489 497 511 512 756 758 1510 1546 1547 1548 1549 2752 2872 2873 2874 3250 3694 3891 3892 4540; \
    <^ = 509 801; \
    = = 15 91 92 93 94 96 98 254 260 352 353 385 387 410 416 503 532 533 607 620 649 670 792 900 974 1054 1070 1093 1108 1120 1130 1201 1220 1320 1330 1500 1535 1550 1616 1752 1784 1804 1862 1868 1955 2060 2347 2360 2373 2386 2536 2542 2860 2972 2988 3222 3240 3362 3516 3629 3676 3882 5068; \
    > = 59 76 258 264 413 419 502 520 521 536 537 610 623 633 646 662 666 674 794 903 1060 1073 1097 1112 1123 1133 1205 1224 1324 1334 1503 1554 1589 1756 1787 1807 1865 1871 1959 2064 2349 2362 2375 2388 2538 2544 2800 2865 2975 2991 3225 3243 3366 3519 3632 3679 3887 5074; \
    >= = 82 257 263 415 430 501 524 525 542 543 612 625 634 648 663 667 675 796 905 1061 1075 1098 1113 1125 1135 1206 1225 1325 1335 1505 1555 1590 1695 1757 1789 1809 1867 1873 1960 2065 2348 2361 2374 2387 2537 2543 2802 2864 2977 2993 3227 3245 3367 3521 3631 3678 3886 5076; \
    >> = 488 496 508 933 1509 1796 1879 1885 1891 3894 4398 4399 4400; >>= = 934; >^ = 506 800; \
    ? = 3247; ?# = 798 802 1525 1537 1538 1539 1611; ?& = 3249; ?- = 808 1528 1614; ?-| = 1527 1613; \
    ?| = 809 1529 1615 3248; ?|| = 1526 1612; @ = 473 590 595 682 773 1763; @-@ = 799 1591; \
    @> = 433 490 498 755 757 759 968 1511 2751 2869 2870 2871 3246 3693 3889 3890 4539; @? = 4012; \
    @@ = 513 969 971 1420 3636 3637 3762 3763 4013; @@@ = 3660 3661; ^ = 965 1038; ^@ = 3877; \
    | = 1792 1875 1881 1887 2636 3149 3370; |&> = 2572 2576 2590; |/ = 596; \
    |>> = 1514 2573 2577 4161; || = 349 374 375 654 1797 2018 2779 2780 3284 3633 3681; ||/ = 597; \
    ~ = 639 641 1055 1794 1877 1883 1889 2634 3147 3368; ~* = 1226 1228 1234; ~<=~ = 2315 2327; \
    ~<~ = 2314 2326; ~= = 491 499 510 1512; ~>=~ = 2317 2329; ~>~ = 2318 2330; \
    ~~ = 1207 1209 1211 2016; ~~* = 1625 1627 1629";

/// Immutable functions of `pg_proc`.
const FUNCTIONS: &str = "\
    abbrev = 598 599; abs = 1394 1395 1396 1397 1398 1705; aclcontains = 1037; acldefault = 3943; \
    aclinsert = 1035; aclremove = 1036; acos = 1601; acosd = 2732; acosh = 2466; age = 1199 2058; \
    area = 975 979 1468; array_append = 378; array_dims = 747; array_fill = 1193 1286; \
    array_length = 2176; array_lower = 2091; array_ndims = 748; array_position = 3277 3278; \
    array_positions = 3279; array_prepend = 379; array_remove = 3167; array_replace = 3168; \
    array_to_tsvector = 3327; array_upper = 2092; ascii = 1620; asin = 1600; asind = 2731; \
    asinh = 2465; atan = 1602; atan2 = 1603; atan2d = 2734; atand = 2733; atanh = 2467; \
    bit = 1683 1685 2075; bit_count = 6162 6163; bit_length = 1810 1811 1812; bit_send = 2457; \
    bittypmodin = 2919; bool = 2557 3556; boolsend = 2437; box = 1421 1446 1480 4091; \
    box_send = 2485; bpchar = 408 668 860; bpchartypmodin = 2913; broadcast = 698; \
    btrim = 884 885 2015; byteasend = 2413; cardinality = 3179; cash_send = 2493; cash_words = 935; \
    cbrt = 1345; ceil = 1711 2308; ceiling = 2167 2320; center = 1542 1543; char = 78 944; \
    char_length = 1372 1381; character_length = 1367 1369; charsend = 2435; chr = 1621; cidr = 1715; \
    cidr_send = 2499; cidsend = 2443; circle = 1473 1474 1479; circle_send = 2491; cos = 1605; \
    cosd = 2736; cosh = 2463; cot = 1607; cotd = 2738; date = 2029; date_bin = 6177 6178; \
    date_part = 1172 1273 1384 1385 2021; date_send = 2469; date_trunc = 1218 2020; \
    datemultirange = 4292 4293 4294; daterange = 3941 3942; daterange_canonical = 3915; \
    daterange_subdiff = 3925; decode = 1947; degrees = 1608; dexp = 233; diagonal = 981; \
    diameter = 1469; div = 1973; dlog1 = 234; dlog10 = 1339; dround = 228; dtrunc = 229; \
    encode = 1946; exp = 1347 1732; extract = 6199 6200 6201 6202 6204; factorial = 1376; \
    family = 711; float4 = 236 312 318 652 1745 3453; float4send = 2425; \
    float8 = 235 311 316 482 1746 2580; float8send = 2427; floor = 1712 2309; gcd = 5044 5045 5048; \
    generate_series = 938 1066 1067 1068 1069 3259 3260; generate_subscripts = 1191 1192; \
    get_bit = 723 3032; get_byte = 721; height = 977; host = 699; hostmask = 1362; inet_send = 2497; \
    initcap = 872; int2 = 237 238 314 714 1783 3450; int2send = 2405; int2vectorsend = 2411; \
    int4 = 77 313 317 319 480 1684 1744 2558 3451; int4inc = 766; int4multirange = 4280 4281 4282; \
    int4range = 3840 3841; int4range_canonical = 3914; int4range_subdiff = 3922; int4send = 2407; \
    int8 = 481 483 653 754 1288 1779 2076 3452; int8_sum = 1842; int8multirange = 4295 4296 4297; \
    int8range = 3945 3946; int8range_canonical = 3928; int8range_subdiff = 3923; int8send = 2409; \
    interval = 1200 1370; interval_send = 2479; intervaltypmodin = 2903; is_normalized = 4351; \
    isclosed = 1430; isempty = 4237; isfinite = 1373 1389 1390 2048; ishorizontal = 1407 1411 1415; \
    isopen = 1431; isparallel = 1408 1412; isperp = 1409 1413; isvertical = 1406 1410 1414; \
    json_array_elements = 3955; json_array_elements_text = 3969; json_array_length = 3956; \
    json_each = 3958; json_each_text = 3959; json_extract_path = 3951; json_extract_path_text = 3953; \
    json_object = 3202 3203; json_object_keys = 3957; json_send = 324; json_strip_nulls = 3261; \
    json_to_tsvector = 4216; json_typeof = 3968; jsonb_array_elements = 3219; \
    jsonb_array_elements_text = 3465; jsonb_array_length = 3207; jsonb_each = 3208; \
    jsonb_each_text = 3932; jsonb_extract_path = 3217; jsonb_extract_path_text = 3940; \
    jsonb_insert = 3579; jsonb_object = 3263 3264; jsonb_object_keys = 3931; \
    jsonb_path_exists = 4005; jsonb_path_match = 4009; jsonb_path_query = 4006; \
    jsonb_path_query_array = 4007; jsonb_path_query_first = 4008; jsonb_pretty = 3306; \
    jsonb_send = 3803; jsonb_set = 3305; jsonb_set_lax = 5054; jsonb_strip_nulls = 3262; \
    jsonb_to_tsvector = 4214; jsonb_typeof = 3210; jsonpath_send = 4004; justify_days = 1295; \
    justify_hours = 1175; justify_interval = 2711; lcm = 5046 5047 5049; left = 3060; \
    length = 1317 1318 1530 1531 1681 2010 3711; like = 1569 1571 2007; like_escape = 1637 2009; \
    line = 1493; line_send = 2489; ln = 1341 1734; log = 1340 1736 1741; log10 = 1194 1481; \
    lower = 870 3848 4235; lower_inc = 3851 4238; lower_inf = 3853 4240; lpad = 873 879; \
    lseg = 993 1541; lseg_send = 2481; ltrim = 875 881 6195; macaddr = 4124; macaddr8 = 4123; \
    macaddr8_send = 3447; macaddr8_set7bit = 4125; macaddr_send = 2495; make_date = 3846; \
    make_interval = 3464; make_time = 3847; make_timestamp = 3461; makeaclitem = 1365; masklen = 697; \
    md5 = 2311 2321; min_scale = 5042; mod = 940 941 947 1728; multirange = 4298; \
    name = 407 409 1400; nameconcatoid = 266; netmask = 696; network = 683; normalize = 4350; \
    notlike = 1570 1572 2008; npoints = 1545 1556; num_nonnulls = 440; num_nulls = 438; \
    numeric = 1703 1740 1742 1743 1781 1782 3449; numeric_div_trunc = 1980; numeric_exp = 1733; \
    numeric_inc = 1764; numeric_ln = 1735; numeric_log = 1737; numeric_send = 2461; \
    numeric_sqrt = 1731; numerictypmodin = 2917; nummultirange = 4283 4284 4285; numnode = 3672; \
    numrange = 3844 3845; numrange_subdiff = 3924; octet_length = 720 1374 1375 1682; oid = 1287; \
    oidsend = 2419; oidvectorsend = 2421; \
    overlaps = 1271 1304 1308 1309 1310 1311 2041 2042 2043 2044; \
    overlay = 749 752 1404 1405 3030 3031; parse_ident = 1268; path = 1447; path_send = 2483; \
    pclose = 1433; pg_ddl_command_send = 90; pg_encoding_max_length = 2319; \
    pg_indexam_progress_phasename = 676; pg_lsn = 6103; pg_lsn_send = 3239; pg_partition_root = 3424; \
    pg_size_bytes = 3334; pg_size_pretty = 2288 3166; pg_snapshot_send = 5058; \
    pg_snapshot_xip = 5064; pg_snapshot_xmax = 5063; pg_snapshot_xmin = 5062; \
    pg_visible_in_snapshot = 5065; pg_wal_lsn_diff = 3165; pg_walfile_name = 2851; \
    pg_walfile_name_offset = 2850; phraseto_tsquery = 5006; pi = 1610; plainto_tsquery = 3747; \
    point = 1416 1440 1532 1534 1540; point_send = 2429; poly_send = 2487; \
    polygon = 1448 1449 1475 1544; popen = 1434; position = 849 1698 2014; \
    postgresql_fdw_validator = 2316; pow = 1346 1738; power = 1368 2169; querytree = 3673; \
    quote_ident = 1282; quote_literal = 1283; quote_nullable = 1289; radians = 1609; radius = 1470; \
    range_merge = 4228; regclasssend = 2453; regcollationsend = 4197; regconfigsend = 3739; \
    regdictionarysend = 3774; regexp_count = 6254 6255 6256; \
    regexp_instr = 6257 6258 6259 6260 6261 6262; regexp_like = 6263 6264; regexp_match = 3396 3397; \
    regexp_matches = 2763 2764; regexp_replace = 2284 2285 6251 6252 6253; \
    regexp_split_to_array = 2767 2768; regexp_split_to_table = 2765 2766; \
    regexp_substr = 6265 6266 6267 6268 6269; regnamespacesend = 4088; regoperatorsend = 2451; \
    regopersend = 2449; regproceduresend = 2447; regprocsend = 2445; regrolesend = 4095; \
    regtypesend = 2455; repeat = 1622; replace = 2087; reverse = 3062; right = 3061; \
    round = 1342 1707 1708; rpad = 874 880; rtrim = 876 882 6196; satisfies_hash_partition = 5028; \
    scale = 3281; set_bit = 724 3033; set_byte = 722; set_masklen = 605 635; setweight = 3320 3624; \
    sha224 = 3419; sha256 = 3420; sha384 = 3421; sha512 = 3422; sign = 1706 2310; \
    similar_escape = 1623; similar_to_escape = 1986 1987; sin = 1604; sind = 2735; sinh = 2462; \
    slope = 992; split_part = 2088; sqrt = 1344 1730; string_to_array = 376 394; \
    string_to_table = 6160 6161; strip = 3623; strpos = 868; substr = 877 883 2085 2086; \
    substring = 936 937 1680 1699 2012 2013 2073 2074; tan = 1606; tand = 2737; tanh = 2464; \
    text = 401 406 730 946 2922 2971; textlen = 1257; tidsend = 2439; time = 1316 1419 1968 2046; \
    time_send = 2471; timestamp = 1961 2024 2025; timestamp_send = 2475; timestamptypmodin = 2905; \
    timestamptz = 1359 1967; timestamptz_send = 2477; timestamptztypmodin = 2907; \
    timetypmodin = 2909; timetz = 1969; timetz_send = 2473; timetztypmodin = 2911; \
    timezone = 1026 1159 2038 2069 2070; to_ascii = 1845 1846 1847; to_hex = 2089 2090; \
    to_timestamp = 1158; to_tsquery = 3746; to_tsvector = 3745 4211 4212; translate = 878; \
    trim_array = 6172; trim_scale = 5043; trunc = 753 1343 1709 1710 4112; ts_delete = 3321 3323; \
    ts_filter = 3319; ts_headline = 3743 3744 4201 4202 4205 4206; ts_lexize = 3723; ts_parse = 3715; \
    ts_rank = 3703 3704 3705 3706; ts_rank_cd = 3707 3708 3709 3710; ts_rewrite = 3684; \
    ts_token_type = 3713; tsmultirange = 4286 4287 4288; tsquery_phrase = 5004; tsquerysend = 3640; \
    tsrange = 3933 3934; tsrange_subdiff = 3929; tstzmultirange = 4289 4290 4291; \
    tstzrange = 3937 3938; tstzrange_subdiff = 3930; tsvector_to_array = 3326; tsvectorsend = 3638; \
    txid_snapshot_send = 2942; txid_snapshot_xip = 2947; txid_snapshot_xmax = 2946; \
    txid_snapshot_xmin = 2945; txid_visible_in_snapshot = 2948; unistr = 6198; unknownsend = 2417; \
    unnest = 1293 2331 3322; upper = 871 3849 4236; upper_inc = 3852 4239; upper_inf = 3854 4241; \
    uuid_send = 2962; varbit = 1687; varbit_send = 2459; varbittypmodin = 2902; varchar = 669 1401; \
    varchartypmodin = 2915; void_send = 3121; websearch_to_tsquery = 5007; width = 976; \
    width_bucket = 320 2170 3218; xid = 5071; xid8send = 5083; xidsend = 2441; \
    xml_is_well_formed_content = 3053; xml_is_well_formed_document = 3052; xmlcomment = 2895; \
    xmlexists = 2614; xmlvalidate = 2897; xpath = 2931 2932; xpath_exists = 3049 3050";

/// `pg_type`, without pseudo-types and rows of catalogs.
const TYPES: &str = "\
    boolean = 16; bytea = 17; name = 19; bigint = 20; smallint = 21; int2vector = 22; integer = 23; \
    regproc = 24; text = 25; oid = 26; tid = 27; xid = 28; cid = 29; oidvector = 30; json = 114; \
    xml = 142; xml[] = 143; json[] = 199; xid8[] = 271; point = 600; lseg = 601; path = 602; \
    box = 603; polygon = 604; line = 628; line[] = 629; cidr = 650; cidr[] = 651; real = 700; \
    double precision = 701; circle = 718; circle[] = 719; macaddr8 = 774; macaddr8[] = 775; \
    money = 790; money[] = 791; macaddr = 829; inet = 869; boolean[] = 1000; bytea[] = 1001; \
    name[] = 1003; smallint[] = 1005; int2vector[] = 1006; integer[] = 1007; regproc[] = 1008; \
    text[] = 1009; tid[] = 1010; xid[] = 1011; cid[] = 1012; oidvector[] = 1013; character[] = 1014; \
    character varying[] = 1015; bigint[] = 1016; point[] = 1017; lseg[] = 1018; path[] = 1019; \
    box[] = 1020; real[] = 1021; double precision[] = 1022; polygon[] = 1027; oid[] = 1028; \
    aclitem = 1033; aclitem[] = 1034; macaddr[] = 1040; inet[] = 1041; character = 1042; \
    character varying = 1043; date = 1082; time without time zone = 1083; \
    timestamp without time zone = 1114; timestamp without time zone[] = 1115; date[] = 1182; \
    time without time zone[] = 1183; timestamp with time zone = 1184; \
    timestamp with time zone[] = 1185; interval = 1186; interval[] = 1187; numeric[] = 1231; \
    cstring[] = 1263; time with time zone = 1266; time with time zone[] = 1270; bit = 1560; \
    bit[] = 1561; bit varying = 1562; bit varying[] = 1563; numeric = 1700; refcursor = 1790; \
    refcursor[] = 2201; regprocedure = 2202; regoper = 2203; regoperator = 2204; regclass = 2205; \
    regtype = 2206; regprocedure[] = 2207; regoper[] = 2208; regoperator[] = 2209; regclass[] = 2210; \
    regtype[] = 2211; txid_snapshot[] = 2949; uuid = 2950; uuid[] = 2951; txid_snapshot = 2970; \
    tsvector = 3614; tsquery = 3615; gtsvector = 3642; tsvector[] = 3643; gtsvector[] = 3644; \
    tsquery[] = 3645; regconfig = 3734; regconfig[] = 3735; regdictionary = 3769; \
    regdictionary[] = 3770; jsonb = 3802; jsonb[] = 3807; int4range = 3904; int4range[] = 3905; \
    numrange = 3906; numrange[] = 3907; tsrange = 3908; tsrange[] = 3909; tstzrange = 3910; \
    tstzrange[] = 3911; daterange = 3912; daterange[] = 3913; int8range = 3926; int8range[] = 3927; \
    jsonpath = 4072; jsonpath[] = 4073; regnamespace = 4089; regnamespace[] = 4090; regrole = 4096; \
    regrole[] = 4097; regcollation = 4191; regcollation[] = 4192; int4multirange = 4451; \
    nummultirange = 4532; tsmultirange = 4533; tstzmultirange = 4534; datemultirange = 4535; \
    int8multirange = 4536; xid8 = 5069; int4multirange[] = 6150; nummultirange[] = 6151; \
    tsmultirange[] = 6152; tstzmultirange[] = 6153; datemultirange[] = 6155; int8multirange[] = 6157";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operators_functions_and_types_have_the_names_that_people_write() {
        assert_eq!(operator(1209), Some("~~"));
        assert_eq!(operator(96), Some("="));
        assert_eq!(function(870), Some("lower"));
        assert_eq!(type_name(1184), Some("timestamp with time zone"));
        assert_eq!(type_name(1007), Some("integer[]"));
        assert_eq!(type_name(9_999_999), None);
    }
}
